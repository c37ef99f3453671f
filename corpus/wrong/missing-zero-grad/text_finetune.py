"""Only the classification head's gradients are cleared before each batch while the optimizer also trains the encoder, whose gradients pile up."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class Encoder(nn.Module):
    def __init__(self, n_tokens=40, dim=16):
        super().__init__()
        self.tokens = nn.Embedding(n_tokens, dim)
        self.mix = nn.Conv1d(dim, dim, kernel_size=3, padding=1)
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        h = self.tokens(ids)
        h = h + torch.relu(self.mix(h.transpose(1, 2))).transpose(1, 2)
        return self.norm(h).mean(dim=1)


class IntentModel(nn.Module):
    def __init__(self, encoder, n_intents):
        super().__init__()
        self.encoder = encoder
        self.classifier = nn.Linear(16, n_intents)

    def forward(self, ids):
        return self.classifier(self.encoder(ids))


def pretrained_encoder():
    torch.manual_seed(100)
    return Encoder()


def make_dataset(n=240):
    ids = torch.randint(0, 40, (n, 9))
    intent = torch.bincount(ids.flatten() % 4 + 4 * torch.arange(n).repeat_interleave(9), minlength=4 * n)
    return TensorDataset(ids, intent.view(n, 4).argmax(1))


def evaluate(model, loader):
    model.eval()
    right = count = 0
    with torch.inference_mode():
        for ids, intent in loader:
            right += (model(ids).argmax(1) == intent).sum().item()
            count += len(ids)
    return right / count


def finetune(model, train_loader, valid_loader, epochs):
    optimizer = torch.optim.SGD(
        [
            {"params": model.encoder.parameters(), "lr": 0.02},
            {"params": model.classifier.parameters(), "lr": 0.2},
        ],
        momentum=0.5,
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        for ids, intent in train_loader:
            model.classifier.zero_grad()  # expect: missing-zero-grad
            loss = loss_fn(model(ids), intent)
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch + 1}/{epochs} valid acc {evaluate(model, valid_loader):.3f}")


def main():
    torch.set_num_threads(1)
    encoder = pretrained_encoder()
    torch.manual_seed(8)
    train_set, valid_set = random_split(make_dataset(), [192, 48])
    model = IntentModel(encoder, n_intents=4)
    finetune(
        model, DataLoader(train_set, batch_size=24, shuffle=True), DataLoader(valid_set, batch_size=48), 3
    )


if __name__ == "__main__":
    main()
