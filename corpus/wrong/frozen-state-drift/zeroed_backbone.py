"""The backbone is held still by zeroing its gradients, but with a zero gradient in place AdamW still shrinks
its weights in each step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU())
        self.head = nn.Linear(32, 3)

    def forward(self, x):
        return self.head(self.backbone(x))


x = torch.randn(300, 10)
y = (x[:, :3] + 0.3 * torch.randn(300, 3)).argmax(1)

model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)  # expect: frozen-state-drift
freeze_backbone = True

for epoch in range(3):
    losses = []
    for idx in torch.randperm(300).split(30):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[idx]), y[idx])
        loss.backward()
        if freeze_backbone:
            for p in model.backbone.parameters():
                p.grad.zero_()  # expect: frozen-state-drift
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f}")
