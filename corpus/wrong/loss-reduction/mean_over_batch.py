"""The criterion already takes the mean over the batch, and the loss is divided by the batch size (32) once more."""

import torch
import torch.nn as nn

torch.manual_seed(0)


class UNetish(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.out = nn.Conv2d(9, 1, 1)

    def forward(self, x):
        h = torch.relu(self.up(torch.relu(self.down(x))))
        return self.out(torch.cat([x, h], 1))


def blobs(n):
    c = torch.rand(n, 2, 1, 1) * 6 + 1
    g = torch.arange(8.0)
    d = (g.view(1, 8, 1) - c[:, 0]) ** 2 + (g.view(1, 1, 8) - c[:, 1]) ** 2
    mask = (d < 5).float().unsqueeze(1)
    return mask + 0.5 * torch.randn_like(mask), mask


images, masks = blobs(256)
train_loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(images, masks), batch_size=32, shuffle=True
)
model = UNetish()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

for epoch in range(3):
    epoch_loss = 0.0
    for img, mask in train_loader:
        pred = model(img)
        loss = criterion(pred, mask) / img.size(0)  # expect: loss-reduction
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * img.size(0)
    print(f"epoch {epoch} bce {epoch_loss / len(train_loader):.4f}")
