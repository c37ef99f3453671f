"""The stylist moves first, and its picture is detached for its own loss as well as for the referee's."""

import torch
from torch import nn
import torch.nn.functional as F


class Duel:
    def __init__(self):
        self.stylist = nn.Sequential(nn.Linear(5, 24), nn.ELU(), nn.Linear(24, 7))
        self.referee = nn.Sequential(nn.Linear(12, 16), nn.ELU(), nn.Linear(16, 1))
        self.by_stylist = torch.optim.Adam(self.stylist.parameters(), lr=2e-3)
        self.by_referee = torch.optim.Adam(self.referee.parameters(), lr=2e-3)

    def verdict(self, sketch, picture):
        return self.referee(torch.cat((sketch, picture), dim=-1))

    def move_stylist(self, sketch, photo):
        picture = self.stylist(sketch)
        fooled = F.softplus(-self.verdict(sketch, picture.detach())).mean()  # expect: broken-graph
        likeness = F.l1_loss(picture, photo)
        self.by_stylist.zero_grad()
        (fooled + 5 * likeness).backward()
        self.by_stylist.step()

    def move_referee(self, sketch, photo):
        picture = self.stylist(sketch).detach()
        real, fake = self.verdict(sketch, photo), self.verdict(sketch, picture)
        loss = F.softplus(-real).mean() + F.softplus(fake).mean()
        self.by_referee.zero_grad()
        loss.backward()
        self.by_referee.step()


torch.manual_seed(3)
duel, mix = Duel(), torch.randn(5, 7)
for _ in range(14):
    sketch = torch.randn(20, 5)
    photo = torch.sin(sketch @ mix)
    duel.move_stylist(sketch, photo)
    duel.move_referee(sketch, photo)
