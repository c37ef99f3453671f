"""Looks like unscaled accumulation: each task's backward adds to the meta parameters, whose gradients are
divided by the number of tasks just before the step."""

import copy

import torch
from torch import nn
from torch.func import functional_call


class Learner:
    """A clone whose parameters are functions of the module's own."""

    def __init__(self, module, lr, first_order=False):
        self.module, self.lr, self.first_order = module, lr, first_order
        self.fast = {k: v.clone() for k, v in module.named_parameters()}

    def adapt(self, loss):
        grads = torch.autograd.grad(
            loss, self.fast.values(), retain_graph=not self.first_order, create_graph=not self.first_order
        )
        self.fast = {k: p - self.lr * g for (k, p), g in zip(self.fast.items(), grads)}

    def __call__(self, x):
        return functional_call(self.module, self.fast, (x,))


def sample_task(ways=3, shots=4, features=6):
    centers = torch.randn(ways, features)
    x = (centers[:, None] + 0.4 * torch.randn(ways, 2 * shots, features)).split(shots, dim=1)
    y = torch.arange(ways).repeat_interleave(shots)
    return x[0].reshape(-1, features), x[1].reshape(-1, features), y


def main(meta_batch_size=4, adaptation_steps=2, iterations=5):
    torch.manual_seed(42)
    model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3))
    before = copy.deepcopy(model.state_dict())
    opt = torch.optim.Adam(model.parameters(), 3e-3)
    loss_fn = nn.CrossEntropyLoss(reduction="mean")
    for iteration in range(iterations):
        opt.zero_grad()
        error = 0.0
        for _ in range(meta_batch_size):
            support, query, y = sample_task()
            learner = Learner(model, lr=0.3)
            for _ in range(adaptation_steps):
                learner.adapt(loss_fn(learner(support), y))
            evaluation = loss_fn(learner(query), y)
            evaluation.backward()
            error += evaluation.item()
        for p in model.parameters():
            p.grad.data.mul_(1.0 / meta_batch_size)
        opt.step()
        print("Iteration", iteration, "Meta Train Error", round(error / meta_batch_size, 4))
    moved = sum((before[k] - v).norm().item() for k, v in model.state_dict().items())
    print("moved by", round(moved, 4))


if __name__ == "__main__":
    main()
