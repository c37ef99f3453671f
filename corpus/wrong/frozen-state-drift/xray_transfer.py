"""The backbone's weights are frozen but model.train() also puts its BatchNorm layers into training mode, so their running statistics drift to the new data."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SmallBackbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(6)
        self.conv2 = nn.Conv2d(6, 12, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(12)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return x.mean(dim=(2, 3))


class TransferModel(nn.Module):
    def __init__(self, backbone, n_classes):
        super().__init__()
        self.backbone = backbone
        self.dropout = nn.Dropout(0.2)
        self.head = nn.Linear(12, n_classes)

    def freeze_backbone(self):
        for p in self.backbone.parameters():
            p.requires_grad = False

    def forward(self, x):
        return self.head(self.dropout(self.backbone(x)))


def pretrained_backbone():
    """Stands in for downloaded weights: statistics from 'natural' images."""
    torch.manual_seed(500)
    backbone = SmallBackbone()
    with torch.no_grad():
        for _ in range(5):
            backbone(torch.randn(32, 1, 12, 12))
    return backbone.eval()


def xrays(n):
    label = torch.randint(0, 2, (n,))
    img = 2.0 + 0.5 * torch.randn(n, 1, 12, 12)
    stripes = torch.sin(torch.arange(12.0) * 2).view(1, 1, 12, 1)
    return TensorDataset(img + label.view(-1, 1, 1, 1) * stripes, label)


def evaluate(model, loader):
    model.eval()
    hits = 0
    with torch.no_grad():
        for img, label in loader:
            hits += (model(img).argmax(1) == label).sum().item()
    return hits / len(loader.dataset)


def main():
    torch.set_num_threads(1)
    model = TransferModel(pretrained_backbone(), 2)
    model.freeze_backbone()
    torch.manual_seed(3)
    train_loader = DataLoader(xrays(160), batch_size=20, shuffle=True)
    test_loader = DataLoader(xrays(60), batch_size=60)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=2e-2)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(3):
        model.train()  # expect: frozen-state-drift
        for img, label in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(img), label)
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f} acc {evaluate(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
