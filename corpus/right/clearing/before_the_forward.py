"""Looks as if gradients were still there when the epoch ends: they are, and the next zero_grad clears them
before anything is added."""

import torch
from torch import nn

torch.manual_seed(2)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(True), nn.Linear(32, 6))
        self.decoder = nn.Sequential(nn.Linear(6, 32), nn.ReLU(True), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x):
        return self.decoder(self.encoder(x))


def waves(n):
    t = torch.linspace(0, 6.28, 64)
    freq, phase = torch.rand(n, 1) * 3 + 0.5, torch.rand(n, 1) * 6.28
    return 0.5 + 0.5 * torch.sin(freq * t + phase)


def validate(model, batch):
    model.eval()
    with torch.inference_mode():
        loss = nn.functional.mse_loss(model(batch), batch)
    model.train()
    return loss.item()


model = Autoencoder().to(device)
optimizer = torch.optim.Adamax(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.7)
train, val = waves(128).to(device), waves(32).to(device)

for epoch in range(3):
    for batch in train[torch.randperm(128)].split(32):
        optimizer.zero_grad()
        reconstruction = model(batch)
        loss = nn.functional.mse_loss(reconstruction, batch)
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(f"epoch {epoch + 1} train {loss.item():.4f} val {validate(model, val):.4f}")
