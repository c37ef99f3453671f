"""MAML with a learned inner rate per layer and init: the rates only act on the gradient; but create_graph is missing in a learned inner loss."""

import torch
from torch import nn
from torch.func import functional_call

torch.manual_seed(0)


class InnerLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 8), nn.Softplus(), nn.Linear(8, 1, bias=False))

    def forward(self, pred, target):
        return self.net(torch.cat([pred, target], 1)).mean()


model, inner_loss = nn.Linear(3, 1), InnerLoss()
meta = torch.optim.Adam([*model.parameters(), *inner_loss.parameters()], lr=1e-2)
for task in range(12):
    xs, ys, xq, yq = torch.randn(8, 3), torch.randn(8, 1), torch.randn(8, 3), torch.randn(8, 1)
    params = dict(model.named_parameters())
    loss = inner_loss(functional_call(model, params, (xs,)), ys)
    grads = torch.autograd.grad(loss, params.values())  # expect: broken-graph
    fast = {k: p - 0.1 * g for (k, p), g in zip(params.items(), grads)}
    outer = nn.functional.mse_loss(functional_call(model, fast, (xq,)), yq)
    meta.zero_grad()
    outer.backward()
    meta.step()
