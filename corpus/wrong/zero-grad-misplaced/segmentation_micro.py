"""zero_grad sits inside the micro-batch loop, so only the last of the four micro-batches of each batch contributes to the update."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(17)
torch.set_num_threads(1)


class TinyUNet(nn.Module):
    def __init__(self, c=6):
        super().__init__()
        self.down1 = nn.Conv2d(1, c, 3, padding=1)
        self.down2 = nn.Conv2d(c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.fuse = nn.Conv2d(2 * c, c, 3, padding=1)
        self.out = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        u = self.up(b)
        return self.out(F.relu(self.fuse(torch.cat([a, u], 1))))


def make_images(n, size=16):
    axis = torch.arange(size).float()
    yy, xx = torch.meshgrid(axis, axis, indexing="ij")
    cx, cy = torch.rand(2, n, 1, 1) * size
    r = 2 + 4 * torch.rand(n, 1, 1)
    mask = (((xx - cx) ** 2 + (yy - cy) ** 2) < r**2).float().unsqueeze(1)
    image = mask + 0.4 * torch.randn(n, 1, size, size)
    return image, mask


def dice_score(logits, mask):
    pred = (logits > 0).float()
    return (2 * (pred * mask).sum() / (pred.sum() + mask.sum() + 1e-6)).item()


def train_one_epoch(model, optimizer, images, masks, batch_size=32, micro_size=8):
    model.train()
    losses = []
    for batch in torch.randperm(len(images)).split(batch_size):
        micros = batch.split(micro_size)
        batch_loss = 0.0
        for idx in micros:
            optimizer.zero_grad()  # expect: zero-grad-misplaced
            logits = model(images[idx])
            loss = F.binary_cross_entropy_with_logits(logits, masks[idx]) / len(micros)
            loss.backward()
            batch_loss += loss.item()
        optimizer.step()
        losses.append(batch_loss)
    return sum(losses) / len(losses)


images, masks = make_images(96)
val_images, val_masks = make_images(24)
model = TinyUNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

for epoch in range(3):
    loss = train_one_epoch(model, optimizer, images, masks)
    model.eval()
    with torch.no_grad():
        d = dice_score(model(val_images), val_masks)
    print(f"epoch {epoch}  bce {loss:.4f}  dice {d:.3f}")
