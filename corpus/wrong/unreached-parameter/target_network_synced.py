"""Nothing calls the layer norm of the Q network, whose values the target network takes over now and then."""

import torch
from torch import nn

torch.manual_seed(3)


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(5, 24)
        self.norm = nn.LayerNorm(24)  # expect: unreached-parameter
        self.head = nn.Linear(24, 2)

    def forward(self, s):
        return self.head(torch.relu(self.body(s)))  # expect: unreached-parameter


online, target = QNet(), QNet()
target.load_state_dict(online.state_dict())
optimizer = torch.optim.AdamW(online.parameters(), lr=1e-3)
for step in range(18):
    s, a, r, s2 = torch.randn(16, 5), torch.randint(2, (16, 1)), torch.rand(16), torch.randn(16, 5)
    with torch.no_grad():
        goal = r + 0.9 * target(s2).max(1).values
    loss = nn.functional.smooth_l1_loss(online(s).gather(1, a).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 5:
        target.load_state_dict(online.state_dict())
print(f"loss {loss.item():.4f}")
