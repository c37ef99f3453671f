"""The cross-entropy is already a mean over the batch and is divided by the batch size once more, so the updates are 32 times too small."""

import argparse
import io

import torch
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset, random_split


class MLP(nn.Module):
    def __init__(self, sizes, p_drop):
        super().__init__()
        layers = []
        for a, b in zip(sizes[:-2], sizes[1:-1]):
            layers += [nn.Linear(a, b), nn.ReLU(), nn.Dropout(p_drop)]
        layers.append(nn.Linear(sizes[-2], sizes[-1]))
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def get_loaders(batch_size, seed):
    data, target = load_digits(return_X_y=True)
    full = TensorDataset(torch.tensor(data[:800] / 16, dtype=torch.float32), torch.tensor(target[:800]))
    train, val = random_split(full, [640, 160], generator=torch.Generator().manual_seed(seed))
    return DataLoader(train, batch_size=batch_size, shuffle=True, drop_last=True), DataLoader(
        val, batch_size=80
    )


def train_epoch(model, loader, optimizer, loss_fn):
    model.train()
    epoch_loss = 0.0
    for inputs, targets in loader:
        outputs = model(inputs)
        loss = loss_fn(outputs, targets) / inputs.size(0)  # expect: loss-reduction
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item()
    return epoch_loss / len(loader)


def evaluate(model, loader):
    model.eval()
    n_correct = 0
    with torch.no_grad():
        for inputs, targets in loader:
            n_correct += (model(inputs).argmax(dim=1) == targets).sum().item()
    return n_correct / len(loader.dataset)


def save_checkpoint(model, optimizer, epoch):
    buffer = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, buffer)
    return buffer.getbuffer().nbytes


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=5)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    train_loader, val_loader = get_loaders(args.batch_size, args.seed)
    model = MLP([64, 48, 32, 10], p_drop=0.1)
    optimizer = optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(args.epochs):
        loss = train_epoch(model, train_loader, optimizer, loss_fn)
        size = save_checkpoint(model, optimizer, epoch)
        print(
            f"epoch {epoch}: loss {loss:.4f} val acc {evaluate(model, val_loader):.3f} checkpoint {size} bytes"
        )


if __name__ == "__main__":
    main()
