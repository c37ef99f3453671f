"""Looks like a kept graph and rebound parameters: the weights are a function of the learning rate for one
step, so that the validation loss can be differentiated by the rate; then they are detached."""

import torch
import torch.nn.functional as F

torch.manual_seed(0)
x, x_val = torch.randn(100, 5), torch.randn(50, 5)
coef = torch.randn(5, 1)
y, y_val = x @ coef + 0.1 * torch.randn(100, 1), x_val @ coef + 0.1 * torch.randn(50, 1)

log_lr = torch.tensor(-4.0, requires_grad=True)
hyper_optimizer = torch.optim.Adam([log_lr], lr=0.2)
weights = [torch.zeros(5, 1, requires_grad=True), torch.zeros(1, requires_grad=True)]


def predict(inputs, w, b):
    return inputs @ w + b


for step in range(12):
    rows = torch.randint(100, (20,))
    train_loss = F.mse_loss(predict(x[rows], *weights), y[rows])
    grads = torch.autograd.grad(train_loss, weights)
    updated = [w - log_lr.exp() * g for w, g in zip(weights, grads)]

    val_loss = F.mse_loss(predict(x_val, *updated), y_val)
    hyper_optimizer.zero_grad()
    log_lr.grad = torch.autograd.grad(val_loss, log_lr)[0]
    hyper_optimizer.step()

    weights = [w.detach().requires_grad_() for w in updated]
    if step % 4 == 3:
        print(f"step {step + 1} val {val_loss.item():.4f} lr {log_lr.exp().item():.4f}")
