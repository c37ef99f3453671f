"""Critic with gradient penalty. The norm is taken over the gradients of the complete batch
instead of sample by sample."""
import torch
import torch.nn as nn

torch.manual_seed(61)

config = {
    "latent": 4,
    "data_dim": 2,
    "hidden": 32,
    "batch": 64,
    "lambda_gp": 5.0,
    "n_critic": 3,
    "iterations": 10,
    "lr": 2e-3,
}


def mlp(n_in, n_out):
    h = config["hidden"]
    return nn.Sequential(nn.Linear(n_in, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, n_out))


def real_samples(n):
    centers = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 2.0]])
    return centers[torch.randint(0, 3, (n,))] + 0.2 * torch.randn(n, 2)


def gradient_penalty(critic, real, fake):
    eps = torch.rand(real.size(0), 1)
    mixed = (eps * real + (1 - eps) * fake).requires_grad_(True)
    scores = critic(mixed)
    grads = torch.autograd.grad(scores, mixed, torch.ones_like(scores), create_graph=True)[0]
    norm = grads.norm(2)  # expect: one norm for the whole batch
    return ((norm - 1) ** 2).mean()


generator = mlp(config["latent"], config["data_dim"])
critic = mlp(config["data_dim"], 1)
opt_g = torch.optim.Adam(generator.parameters(), lr=config["lr"], betas=(0.0, 0.9))
opt_c = torch.optim.Adam(critic.parameters(), lr=config["lr"], betas=(0.0, 0.9))

for it in range(config["iterations"]):
    for _ in range(config["n_critic"]):
        real = real_samples(config["batch"])
        with torch.no_grad():
            fake = generator(torch.randn(config["batch"], config["latent"]))
        gp = gradient_penalty(critic, real, fake)
        critic_loss = critic(fake).mean() - critic(real).mean() + config["lambda_gp"] * gp
        opt_c.zero_grad()
        critic_loss.backward()
        opt_c.step()

    gen_loss = -critic(generator(torch.randn(config["batch"], config["latent"]))).mean()
    opt_g.zero_grad()
    gen_loss.backward()
    opt_g.step()
    if it % 3 == 0:
        print(f"{it:2d}  critic {critic_loss.item():.3f}  gp {gp.item():.3f}  gen {gen_loss.item():.3f}")
