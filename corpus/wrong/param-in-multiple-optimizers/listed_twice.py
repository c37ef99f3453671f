"""The shared projection is listed once through the module it belongs to and once by itself, so SGD applies its gradient
twice in each step."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(16)


class Branch(nn.Module):
    def __init__(self, n_in, proj):
        super().__init__()
        self.inp = nn.Linear(n_in, 16)
        self.proj = proj

    def forward(self, x):
        return F.normalize(self.proj(torch.relu(self.inp(x))), dim=-1)


proj = nn.Linear(16, 8)
image_branch = Branch(20, proj)
text_branch = Branch(12, nn.Linear(16, 8))
params = (
    list(image_branch.parameters()) + list(text_branch.parameters()) + list(proj.parameters())
)  # expect: param-in-multiple-optimizers
optimizer = torch.optim.SGD(params, lr=0.2)

z = torch.randn(200, 4)
image = z @ torch.randn(4, 20) + 0.1 * torch.randn(200, 20)
text = z @ torch.randn(4, 12) + 0.1 * torch.randn(200, 12)

for epoch in range(3):
    losses = []
    for b in torch.randperm(200).split(25):
        logits = image_branch(image[b]) @ text_branch(text[b]).T / 0.2
        labels = torch.arange(len(b))
        loss = (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"epoch {epoch} contrastive loss {sum(losses) / len(losses):.4f}")
