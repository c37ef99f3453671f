"""There is no step and no zero_grad in the loop: each parameter has its own optimizer, which a hook steps and clears
during backward."""

import torch
import torch.nn as nn

torch.manual_seed(0)


class Mlp(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(dims, dims[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.nn.functional.gelu(layer(x))
        return self.layers[-1](x)


model = Mlp([8, 32, 32, 1])
optimizer_dict = {p: torch.optim.AdamW([p], lr=3e-3, weight_decay=0.01) for p in model.parameters()}


def optimizer_hook(parameter):
    optimizer_dict[parameter].step()
    optimizer_dict[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(optimizer_hook)

x = torch.rand(300, 8)
y = (x[:, :2] * 6).sin().sum(1, keepdim=True)
for epoch in range(4):
    total = 0.0
    for xb, yb in zip(x.split(30), y.split(30)):
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        total += loss.item() / 10
    print(f"epoch {epoch} mse {total:.4f}")
