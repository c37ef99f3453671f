"""The KL term enters the total as a Python number, so that it is shown in the loss but nothing pulls the posterior
towards the prior."""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader


class VAE(nn.Module):
    def __init__(self, n_in, n_lat):
        super().__init__()
        self.fc1 = nn.Linear(n_in, 32)
        self.fc21 = nn.Linear(32, n_lat)
        self.fc22 = nn.Linear(32, n_lat)
        self.fc3 = nn.Linear(n_lat, 32)
        self.fc4 = nn.Linear(32, n_in)

    def encode(self, x):
        h1 = torch.relu(self.fc1(x))
        return self.fc21(h1), self.fc22(h1)

    def reparameterize(self, mu, logvar):
        return mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)

    def decode(self, z):
        return self.fc4(torch.relu(self.fc3(z)))

    def forward(self, x):
        mu, logvar = self.encode(x)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(recon_x, x, mu, logvar):
    BCE = nn.functional.binary_cross_entropy_with_logits(recon_x, x, reduction="sum") / len(x)
    KLD = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return BCE + KLD.item(), BCE.item(), KLD.item()  # expect: broken-graph


torch.manual_seed(1)
rows = (torch.rand(8, 25) < 0.3).float()
data = rows[torch.randint(0, 8, (256,))]
data = torch.where(torch.rand_like(data) < 0.05, 1 - data, data)
train_loader = DataLoader(data, batch_size=32, shuffle=True)

model = VAE(25, 3)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

for epoch in range(1, 4):
    model.train()
    train_loss = 0
    for batch in train_loader:
        optimizer.zero_grad()
        recon, mu, logvar = model(batch)
        loss, bce, kld = loss_function(recon, batch, mu, logvar)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()
    print(
        "====> Epoch: {} Average loss: {:.4f} (bce {:.2f}, kld {:.2f})".format(
            epoch, train_loss / len(train_loader), bce, kld
        )
    )
