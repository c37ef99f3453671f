"""The head is exchanged before the optimizer is made, and the body's parameters join the optimizer only in the second
epoch, by add_param_group."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(9)


class Net(nn.Module):
    def __init__(self, n_classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.fc = nn.Linear(16, n_classes)

    def forward(self, x):
        return self.fc(self.body(x))


x = torch.randn(210, 16)
y = (x[:, :3] + x[:, 3:6]).argmax(1)

model = Net(n_classes=100)
model.fc = nn.Linear(16, 3)
for p in model.body.parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(model.fc.parameters(), lr=0.1, momentum=0.9)

for epoch in range(3):
    if epoch == 1:
        for p in model.body.parameters():
            p.requires_grad = True
        optimizer.add_param_group({"params": model.body.parameters(), "lr": 0.02})
    for b in torch.randperm(210).split(21):
        loss = F.cross_entropy(model(x[b]), y[b])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} groups {len(optimizer.param_groups)} loss {loss.item():.4f}")
