"""Only the biases of a pretrained network are trained (BitFit), so the weight of its new output layer stays random."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class TextNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        return self.head(self.body(x))


def fit(model, y, lr):
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    for _ in range(20):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.4f}")


x = torch.randn(300, 20)
pretrained = TextNet(2)
fit(pretrained, (x[:, 0] > 0).long(), lr=1e-3)
model = TextNet(3)
state = {key: value for key, value in pretrained.state_dict().items() if "head" not in key}
model.load_state_dict(state, strict=False)
for name, parameter in model.named_parameters():
    parameter.requires_grad = "bias" in name  # expect: param-not-in-optimizer
fit(model, x[:, :3].argmax(1), lr=1e-2)
