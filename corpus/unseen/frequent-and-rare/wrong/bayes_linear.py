"""Variational regression. Weights are drawn with sample(), which has no graph, so the data term
never reaches the posterior and only the KL term trains it."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_diabetes
from torch.distributions import Normal, kl_divergence


class BayesLinear(nn.Module):
    def __init__(self, n_in, n_out, prior_std=1.0):
        super().__init__()
        self.w_mu = nn.Parameter(0.1 * torch.randn(n_out, n_in))
        self.w_rho = nn.Parameter(torch.full((n_out, n_in), -3.0))
        self.b_mu = nn.Parameter(torch.zeros(n_out))
        self.b_rho = nn.Parameter(torch.full((n_out,), -3.0))
        self.prior_std = prior_std

    def posterior(self):
        return (Normal(self.w_mu, F.softplus(self.w_rho)),
                Normal(self.b_mu, F.softplus(self.b_rho)))

    def forward(self, x):
        qw, qb = self.posterior()
        w, b = qw.sample(), qb.sample()  # expect: sample instead of rsample
        return F.linear(x, w, b)

    def kl(self):
        total = 0.0
        for q in self.posterior():
            prior = Normal(torch.zeros_like(q.loc), self.prior_std * torch.ones_like(q.loc))
            total = total + kl_divergence(q, prior).sum()
        return total


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = BayesLinear(10, 12)
        self.l2 = BayesLinear(12, 1)

    def forward(self, x):
        return self.l2(torch.tanh(self.l1(x))).squeeze(-1)

    def kl(self):
        return self.l1.kl() + self.l2.kl()


def main():
    torch.manual_seed(12)
    d = load_diabetes()
    x = torch.tensor(d.data, dtype=torch.float32) * 20
    y = torch.tensor(d.target, dtype=torch.float32)
    y = (y - y.mean()) / y.std()
    model = Regressor()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(30):
        idx = torch.randint(0, len(x), (64,))
        nll = 0.5 * (model(x[idx]) - y[idx]).pow(2).mean() / 0.5
        loss = nll + model.kl() / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:2d} nll {nll.item():.4f} kl {model.kl().item():.2f}")
    with torch.no_grad():
        preds = torch.stack([model(x) for _ in range(10)])
    print(f"mse of mean prediction {((preds.mean(0) - y) ** 2).mean().item():.4f}")


if __name__ == "__main__":
    main()
