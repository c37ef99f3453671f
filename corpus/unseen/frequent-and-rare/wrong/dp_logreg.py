"""Private training. The gradients are averaged over the batch before they are clipped, so single
samples are not bounded and the noise does not fit."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch.func import functional_call, grad, vmap

CLIP = 0.5
NOISE = 0.4
BATCH = 80


def load():
    d = load_breast_cancer()
    x = torch.tensor(StandardScaler().fit_transform(d.data), dtype=torch.float32)
    return x, torch.tensor(d.target)


def make_model():
    return nn.Sequential(nn.Linear(30, 16), nn.Tanh(), nn.Linear(16, 2))


def per_sample_gradients(model, x, y):
    params = {k: v.detach() for k, v in model.named_parameters()}

    def sample_loss(p, xi, yi):
        logits = functional_call(model, p, (xi.unsqueeze(0),))
        return F.cross_entropy(logits, yi.unsqueeze(0))

    return vmap(grad(sample_loss), in_dims=(None, 0, 0))(params, x, y)


def clip_and_average(grads, limit):
    grads = {k: g.mean(0, keepdim=True) for k, g in grads.items()}  # expect: averaged before clipping
    norms = torch.sqrt(sum(g.flatten(1).pow(2).sum(1) for g in grads.values()))
    factor = (limit / (norms + 1e-6)).clamp(max=1.0)
    out = {}
    for k, g in grads.items():
        out[k] = (g * factor.view(-1, *[1] * (g.dim() - 1))).mean(0)
    return out


def private_step(model, optimizer, x, y):
    clipped = clip_and_average(per_sample_gradients(model, x, y), CLIP)
    for name, p in model.named_parameters():
        noise = torch.randn_like(p) * NOISE * CLIP / len(x)
        p.grad = clipped[name] + noise
    optimizer.step()


def main():
    torch.manual_seed(101)
    x, y = load()
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(30):
        idx = torch.randperm(len(x))[:BATCH]
        private_step(model, optimizer, x[idx], y[idx])
        if step % 10 == 9:
            with torch.no_grad():
                logits = model(x)
                acc = (logits.argmax(1) == y).float().mean().item()
            print(f"step {step + 1}: loss {F.cross_entropy(logits, y).item():.4f} acc {acc:.3f}")


main()
