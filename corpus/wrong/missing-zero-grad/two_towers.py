"""The user optimizer is cleared twice and the item optimizer never, so the item tower steps along the sum of all its
gradients so far."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(13)
n_users, n_items, dim = 40, 30, 8
true_u, true_i = torch.randn(n_users, 4), torch.randn(n_items, 4)
pairs = torch.cartesian_prod(torch.arange(n_users), torch.arange(n_items))
clicks = (torch.sigmoid((true_u[pairs[:, 0]] * true_i[pairs[:, 1]]).sum(1)) > torch.rand(len(pairs))).float()

user_tower = nn.Sequential(nn.Embedding(n_users, dim), nn.Linear(dim, dim))
item_tower = nn.Sequential(nn.Embedding(n_items, dim), nn.Linear(dim, dim))
user_opt = torch.optim.Adagrad(user_tower.parameters(), lr=0.1)
item_opt = torch.optim.Adagrad(item_tower.parameters(), lr=0.1)


def step(batch):
    user_opt.zero_grad()
    user_opt.zero_grad()  # expect: missing-zero-grad
    score = (user_tower(pairs[batch, 0]) * item_tower(pairs[batch, 1])).sum(1)
    loss = F.binary_cross_entropy_with_logits(score, clicks[batch])
    loss.backward()
    user_opt.step()
    item_opt.step()
    return loss.item()


for epoch in range(3):
    losses = [step(b) for b in torch.randperm(len(pairs)).split(100)]
    print(f"epoch {epoch}  bce {sum(losses) / len(losses):.4f}")
