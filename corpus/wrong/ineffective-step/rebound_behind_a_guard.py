"""After the first update each weight is a result, not a leaf. Its gradient is None, and the guard skips it for good."""

import torch

torch.manual_seed(0)
x = torch.randn(96, 4)
y = (x[:, :2].sum(1, keepdim=True) > 0).float()
params = {
    "w1": (torch.randn(4, 12) * 0.5).requires_grad_(),
    "b1": torch.zeros(12, requires_grad=True),
    "w2": (torch.randn(12, 1) * 0.3).requires_grad_(),
}


def update(params, lr):
    for name in params:
        if params[name].grad is None:
            continue
        params[name] = params[name] - lr * params[name].grad  # expect: ineffective-step
    return params


for epoch in range(15):
    hidden = torch.tanh(x @ params["w1"] + params["b1"])
    loss = torch.nn.functional.binary_cross_entropy_with_logits(hidden @ params["w2"], y)
    loss.backward()
    params = update(params, lr=0.5)
print(f"{loss.item():.4f}")
