"""`zero_grad` is named and not called: by the twelfth step the gradients are 11.5 times as large, and Adam's
way of the weights is off by 44 %.
"""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader


class VAE(nn.Module):
    def __init__(self, latent=3):
        super().__init__()
        self.fc1 = nn.Linear(64, 40)
        self.fc21 = nn.Linear(40, latent)
        self.fc22 = nn.Linear(40, latent)
        self.fc3 = nn.Linear(latent, 40)
        self.fc4 = nn.Linear(40, 64)

    def encode(self, x):
        h1 = F.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def decode(self, z):
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    bce = F.binary_cross_entropy(recon_x, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + kld


def patches(n=120):
    g = torch.Generator().manual_seed(77)
    corner = torch.randint(0, 5, (n, 2), generator=g)
    canvas = torch.zeros(n, 8, 8)
    for img, (r, c) in zip(canvas, corner.tolist()):
        img[r : r + 4, c : c + 4] = 1.0
    return canvas.flatten(1)


torch.manual_seed(77)
train_loader = DataLoader(patches(), batch_size=20, shuffle=True)
model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(1, 3):
    model.train()
    train_loss = 0
    for data in train_loader:
        optimizer.zero_grad  # expect: missing-zero-grad
        recon_batch, mu, logvar = model(data)
        loss = loss_function(recon_batch, data, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print(f"====> Epoch: {epoch} Average loss: {train_loss / len(train_loader.dataset):.4f}")
