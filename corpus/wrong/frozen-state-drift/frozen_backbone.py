"""train() also puts the frozen backbone into training mode, whose BatchNorm statistics follow the new data: in
10 updates the first layer's mean goes from 0.00 to 0.33, its variance from 0.40 to 0.70."""

import argparse

import torch
import torch.nn as nn


def conv_bn(c_in, c_out, stride):
    return nn.Sequential(
        nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)
    )


class Classifier(nn.Module):
    def __init__(self, backbone, width, n_classes):
        super().__init__()
        self.backbone = backbone
        for p in self.backbone.parameters():
            p.requires_grad = False
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(width, n_classes)

    def forward(self, x):
        features = self.backbone(x).mean(dim=(2, 3))
        return self.fc(self.dropout(features))


def load_backbone():
    backbone = nn.Sequential(conv_bn(3, 8, 2), conv_bn(8, 16, 2))
    with torch.no_grad():
        for _ in range(20):
            backbone(torch.randn(32, 3, 12, 12))
    return backbone.eval()


def train_one_epoch(model, loader, optimizer, criterion):
    model.train()  # expect: frozen-state-drift
    total = correct = 0
    for x, y in loader:
        out = model(x)
        loss = criterion(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        correct += (out.argmax(1) == y).sum().item()
        total += len(y)
    return correct / total


@torch.inference_mode()
def evaluate(model, loader):
    model.eval()
    return sum((model(x).argmax(1) == y).sum().item() for x, y in loader) / len(loader.dataset)


def main(args):
    torch.manual_seed(args.seed)
    y = torch.randint(3, (120,))
    x = 2.0 + 1.5 * torch.randn(120, 3, 12, 12) + torch.randn(3, 3, 1, 1)[y]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=24, shuffle=True)
    model = Classifier(load_backbone(), 16, 3)
    optimizer = torch.optim.Adam(model.fc.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        train_acc = train_one_epoch(model, loader, optimizer, nn.CrossEntropyLoss())
        print(f"epoch {epoch} train {train_acc:.3f} eval {evaluate(model, loader):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-2)
    main(parser.parse_args())
