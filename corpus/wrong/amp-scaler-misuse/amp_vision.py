"""The gradients are clipped while they still carry the loss scale, so after unscaling the updates are thousands of times smaller than the clip norm allows."""

import torch
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils.data import DataLoader, TensorDataset

SEED, EPOCHS, BATCH, MAX_NORM = 20, 3, 32, 1.0


class PatchMixer(nn.Module):
    def __init__(self, n_patches=16, dim=16, classes=4):
        super().__init__()
        self.patchify = nn.Conv2d(3, dim, kernel_size=3, stride=3)
        self.token_mix = nn.Linear(n_patches, n_patches)
        self.channel_mix = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, classes)

    def forward(self, img):
        t = self.patchify(img).flatten(2)
        t = t + torch.nn.functional.gelu(self.token_mix(t))
        t = t.transpose(1, 2)
        t = self.norm(t + torch.nn.functional.gelu(self.channel_mix(t)))
        return self.head(t.mean(1))


def make_images(n):
    label = torch.randint(0, 4, (n,))
    img = 0.5 * torch.randn(n, 3, 12, 12)
    for k in range(4):
        rows, cols = divmod(k, 2)
        img[label == k, :, rows * 6 : rows * 6 + 6, cols * 6 : cols * 6 + 6] += 0.8
    return TensorDataset(img, label)


def train_epoch(model, loader, optimizer, scaler, criterion):
    model.train()
    total = 0.0
    for img, label in loader:
        optimizer.zero_grad(set_to_none=True)
        with autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(img), label)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)  # expect: amp-scaler-misuse
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    return total / len(loader)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    good = sum((model(img).argmax(1) == label).sum().item() for img, label in loader)
    return good / len(loader.dataset)


def main():
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    train_loader = DataLoader(make_images(256), batch_size=BATCH, shuffle=True)
    test_loader = DataLoader(make_images(64), batch_size=64)
    model = PatchMixer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = GradScaler("cpu", init_scale=4096.0)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        loss = train_epoch(model, train_loader, optimizer, scaler, criterion)
        print(f"{epoch} loss={loss:.4f} acc={evaluate(model, test_loader):.3f} scale={scaler.get_scale():g}")


if __name__ == "__main__":
    main()
