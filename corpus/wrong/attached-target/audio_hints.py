"""One optimizer holds everything in the module, the teacher too: its hints are trained towards the student's."""

import torch
from torch import nn


class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.BatchNorm1d(8), nn.ReLU())
        self.student = nn.Sequential(nn.Conv1d(1, 8, 3, padding=1), nn.ReLU())
        self.classify = nn.Linear(8, 2)

    def forward(self, wave, y):
        hint = self.teacher(wave)
        features = self.student(wave)
        logits = self.classify(features.mean(-1))
        task = nn.functional.cross_entropy(logits, y)
        return task + nn.functional.smooth_l1_loss(features, hint)  # expect: attached-target


torch.manual_seed(0)
model = Distiller()
model.teacher.eval()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(8):
    wave = torch.randn(16, 1, 40)
    loss = model(wave, (wave.mean((1, 2)) > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
