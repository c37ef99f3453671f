"""A hand-written descent step comes on top of the optimizer's, with the same gradient: twice the first step,
and the factors travel 0.94 instead of 0.61."""

import torch

torch.manual_seed(123)

# matrix factorisation of a ratings table
n_users, n_items, rank = 40, 30, 4
truth = torch.randn(n_users, 3) @ torch.randn(3, n_items)
observed = torch.rand(n_users, n_items) < 0.4
users, items = observed.nonzero(as_tuple=True)
ratings = truth[users, items] + 0.1 * torch.randn(len(users))

P = (0.3 * torch.randn(n_users, rank)).requires_grad_()
Q = (0.3 * torch.randn(n_items, rank)).requires_grad_()
factors = [P, Q]
learning_rate = 0.2
optimizer = torch.optim.SGD(factors, lr=learning_rate, momentum=0.5)


def predict(u, i):
    return (P[u] * Q[i]).sum(1)


def refresh(tensors, lr):
    for t in tensors:
        t.data -= lr * t.grad  # expect: inplace-param-update


for epoch in range(2):
    perm = torch.randperm(len(users))
    total = 0.0
    for chunk in perm.split(64):
        error = predict(users[chunk], items[chunk]) - ratings[chunk]
        cost = error.pow(2).mean() + 0.01 * (P.pow(2).mean() + Q.pow(2).mean())
        optimizer.zero_grad()
        cost.backward()
        refresh(factors, learning_rate)
        optimizer.step()
        total += error.detach().pow(2).sum().item()
    print("epoch", epoch, "rmse", (total / len(users)) ** 0.5)
