"""The KL term enters the loss as a Python number because of .item(), so only the reconstruction error trains the VAE."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


class VAE(nn.Module):
    def __init__(self, d_in=64, d_hidden=40, d_latent=4):
        super().__init__()
        self.fc1 = nn.Linear(d_in, d_hidden)
        self.fc_mu = nn.Linear(d_hidden, d_latent)
        self.fc_logvar = nn.Linear(d_hidden, d_latent)
        self.fc3 = nn.Linear(d_latent, d_hidden)
        self.fc4 = nn.Linear(d_hidden, d_in)

    def encode(self, x):
        h = F.relu(self.fc1(x))
        return self.fc_mu(h), self.fc_logvar(h)

    def reparameterize(self, mu, logvar):
        return mu + torch.exp(0.5 * logvar) * torch.randn_like(mu)

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar, beta):
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum") / len(x)
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    logs = {"bce": bce.item(), "kld": kld.item()}
    loss = bce + beta * kld.item()  # expect: broken-graph
    return loss, logs


def train(model, loader, optimizer, beta, log_interval):
    model.train()
    for batch_idx, (x,) in enumerate(loader):
        optimizer.zero_grad()
        recon, mu, logvar = model(x)
        loss, logs = loss_function(recon, x, mu, logvar, beta)
        loss.backward()
        optimizer.step()
        if batch_idx % log_interval == 0:
            print(f"  batch {batch_idx:2d} bce {logs['bce']:.2f} kld {logs['kld']:.2f}")


def test(model, x, beta):
    model.eval()
    with torch.no_grad():
        recon, mu, logvar = model(x)
        return loss_function(recon, x, mu, logvar, beta)[0].item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--beta", type=float, default=4.0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--log-interval", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    x = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(x[:512]), batch_size=32, shuffle=True)
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(args.epochs):
        print("epoch", epoch)
        train(model, loader, optimizer, args.beta, args.log_interval)
    print("test elbo loss %.3f" % test(model, x[512:768], args.beta))


if __name__ == "__main__":
    main()
