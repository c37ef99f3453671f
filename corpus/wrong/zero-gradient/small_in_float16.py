"""Without a gradient scaler, the gradient of a mean over many small errors is too small for float16."""

import torch
import torch.nn as nn

torch.manual_seed(2)
x = torch.randn(64, 8)
y = 1e-5 * torch.randn(64, 64)
body, head = nn.Linear(8, 16), nn.Linear(16, 64)
nn.init.normal_(head.weight, std=1e-5)
nn.init.zeros_(head.bias)
optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
for _ in range(12):
    with torch.autocast("cpu", dtype=torch.float16):
        hidden = body(x).tanh()
        errors = head(hidden).float() - y
    loss = errors.square().mean()
    optimizer.zero_grad()
    loss.backward()  # expect: zero-gradient
    optimizer.step()
print(f"{loss.item():.3e}")
