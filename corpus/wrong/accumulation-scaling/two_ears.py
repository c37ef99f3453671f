"""Both ears of a localizer count one half each; five micro-batches are added up and never divided."""

import torch
from torch import nn

torch.manual_seed(4)


class Localizer(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 24), nn.GELU())
        self.left, self.right = nn.Linear(24, 3), nn.Linear(24, 3)

    def loss(self, sound, position, balance):
        hidden = self.trunk(sound)
        near = nn.functional.smooth_l1_loss(self.left(hidden), position)
        far = nn.functional.mse_loss(self.right(hidden), -position)
        return balance * near + (1 - balance) * far


localizer = Localizer()
optimizer = torch.optim.SGD(localizer.parameters(), lr=1e-3, momentum=0.9)
place = torch.randn(12, 3)
for update in range(12):
    for _ in range(5):
        sound = torch.randn(6, 12)
        loss = localizer.loss(sound, sound @ place, balance=0.5)
        loss.backward()  # expect: accumulation-scaling
    optimizer.step()
    optimizer.zero_grad()
print(loss.item())
