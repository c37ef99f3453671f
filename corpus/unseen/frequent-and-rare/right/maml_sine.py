"""Meta-learning on sine curves. The inner update is done by hand on a list of tensors, with
create_graph, and only the outer optimizer changes the parameters."""
import math
import torch
import torch.nn.functional as F

CONFIG = {
    "hidden": 24,
    "inner_lr": 0.1,
    "inner_steps": 2,
    "outer_lr": 5e-3,
    "tasks_per_step": 4,
    "shots": 10,
    "meta_steps": 15,
    "second_order": True,
}


def init_params(hidden):
    shapes = [(hidden, 1), (hidden,), (hidden, hidden), (hidden,), (1, hidden), (1,)]
    params = []
    for s in shapes:
        if len(s) == 2:
            t = torch.randn(*s) * (1.0 / math.sqrt(s[1]))
        else:
            t = torch.zeros(*s)
        params.append(t.requires_grad_(True))
    return params


def net(x, w):
    h = torch.tanh(F.linear(x, w[0], w[1]))
    h = torch.tanh(F.linear(h, w[2], w[3]))
    return F.linear(h, w[4], w[5])


class SineTask:
    def __init__(self):
        self.amplitude = 0.5 + 2.0 * torch.rand(1)
        self.phase = math.pi * torch.rand(1)

    def sample(self, n):
        x = torch.rand(n, 1) * 10 - 5
        return x, self.amplitude * torch.sin(x + self.phase)


def adapt(params, x, y, cfg):
    fast = params
    for _ in range(cfg["inner_steps"]):
        loss = F.mse_loss(net(x, fast), y)
        grads = torch.autograd.grad(loss, fast, create_graph=cfg["second_order"])
        fast = [p - cfg["inner_lr"] * g for p, g in zip(fast, grads)]
    return fast


def meta_train(cfg):
    params = init_params(cfg["hidden"])
    optimizer = torch.optim.Adam(params, lr=cfg["outer_lr"])
    history = []
    for step in range(cfg["meta_steps"]):
        meta_loss = 0.0
        for _ in range(cfg["tasks_per_step"]):
            task = SineTask()
            fast = adapt(params, *task.sample(cfg["shots"]), cfg)
            xq, yq = task.sample(cfg["shots"])
            meta_loss = meta_loss + F.mse_loss(net(xq, fast), yq)
        meta_loss = meta_loss / cfg["tasks_per_step"]
        optimizer.zero_grad()
        meta_loss.backward()
        optimizer.step()
        history.append(meta_loss.item())
    return params, history


if __name__ == "__main__":
    torch.manual_seed(151)
    params, history = meta_train(CONFIG)
    print("first five:", [round(h, 3) for h in history[:5]])
    print("last five: ", [round(h, 3) for h in history[-5:]])
