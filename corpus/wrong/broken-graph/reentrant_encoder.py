"""An encoder of raw data is run in a reentrant checkpoint, whose only input is the batch."""

import warnings

import torch
import torch.utils.checkpoint
from torch import nn

warnings.filterwarnings("ignore")
torch.manual_seed(1)
encoder = nn.Sequential(nn.Linear(10, 64), nn.GELU(), nn.Linear(64, 16))
head = nn.Linear(16, 1)
optimizer = torch.optim.Adam(list(encoder.parameters()) + list(head.parameters()), lr=1e-3)
x = torch.randn(200, 10)
y = x.prod(1, keepdim=True)
for batch in torch.randperm(200).split(20):
    code = torch.utils.checkpoint.checkpoint(
        encoder,
        x[batch],
        use_reentrant=True,  # expect: broken-graph
    )
    loss = nn.functional.mse_loss(head(code), y[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
