"""Looks like two optimizers in each other's way: the two factors are fitted in turn, the one at rest is not
part of the graph at all."""

import torch


def als_gradient(ratings, known, rank=4, rounds=6, inner=3, lam=0.02):
    n, m = ratings.shape
    U = torch.nn.Parameter(0.3 * torch.randn(n, rank))
    V = torch.nn.Parameter(0.3 * torch.randn(m, rank))
    optimizers = {"U": torch.optim.Adagrad([U], lr=0.2), "V": torch.optim.Adagrad([V], lr=0.2)}

    def objective(u, v):
        err = (u @ v.T - ratings)[known]
        return err.square().sum() / known.sum() + lam * (u.square().mean() + v.square().mean())

    history = []
    for _ in range(rounds):
        for name in ("U", "V"):
            u, v = (U, V.detach()) if name == "U" else (U.detach(), V)
            for _ in range(inner):
                optimizers[name].zero_grad()
                loss = objective(u, v)
                loss.backward()
                optimizers[name].step()
        history.append(loss.item())
    return history


torch.manual_seed(0)
truth = torch.randn(20, 3) @ torch.randn(3, 15)
known = torch.rand(20, 15) < 0.6
history = als_gradient(truth, known)
print(" ".join(f"{h:.3f}" for h in history))
