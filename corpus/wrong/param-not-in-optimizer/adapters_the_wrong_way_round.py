"""The condition is negated: the pretrained layers are trained, and the low-rank adapters stay frozen at zero."""

import torch
import torch.nn.functional as F
from torch import nn


class WithAdapter(nn.Module):
    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer
        self.lora_down = nn.Linear(layer.in_features, rank, bias=False)
        self.lora_up = nn.Linear(rank, layer.out_features, bias=False)
        nn.init.zeros_(self.lora_up.weight)

    def forward(self, x):
        return self.layer(x) + self.lora_up(self.lora_down(x))


torch.manual_seed(2)
network = nn.Sequential(WithAdapter(nn.Linear(9, 18)), nn.GELU(), WithAdapter(nn.Linear(18, 3)))
for name, weight in network.named_parameters():
    weight.requires_grad_("lora" not in name)  # expect: param-not-in-optimizer
adamw = torch.optim.AdamW(filter(lambda weight: weight.requires_grad, network.parameters()), lr=0.01)
x, y = torch.randn(160, 9), torch.randint(3, (160,))
for epoch in range(2):
    for rows in torch.randperm(160).split(20):
        loss = F.cross_entropy(network(x[rows]), y[rows])
        adamw.zero_grad()
        loss.backward()
        adamw.step()
    print(f"epoch {epoch} loss {loss.item():.4f}")
