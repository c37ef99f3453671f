"""Nothing is ever cleared, so each step applies the sum of all gradients since the start: 8 times as large at
the twelfth step, and the weights go 6.3 times as far.
"""

import torch
from torch import nn

torch.manual_seed(0)

x = torch.linspace(-3, 3, 128).unsqueeze(1)
y = torch.sin(2 * x) + 0.1 * torch.randn_like(x)

model = nn.Sequential(
    nn.Linear(1, 32),
    nn.Tanh(),
    nn.Linear(32, 32),
    nn.Tanh(),
    nn.Linear(32, 1),
)
loss_fn = nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

n_epochs = 3
batch_size = 32
for epoch in range(n_epochs):
    permutation = torch.randperm(x.size(0))
    epoch_loss = 0.0
    for i in range(0, x.size(0), batch_size):
        indices = permutation[i : i + batch_size]
        batch_x, batch_y = x[indices], y[indices]

        prediction = model(batch_x)
        loss = loss_fn(prediction, batch_y)
        loss.backward()  # expect: missing-zero-grad
        optimizer.step()  # expect: missing-zero-grad
        epoch_loss += loss.item() * len(indices)

    print(f"epoch {epoch}, loss {epoch_loss / len(x):.4f}")
