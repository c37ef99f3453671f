"""The backbone is held still by a learning rate of zero, and its gradients are computed all the same: the run
takes about four times the CPU time, and 2.9 MB are saved for backward in place of 6 kB."""

import torch
import torch.nn as nn
from torch.optim import AdamW


class TextEncoder(nn.Module):
    def __init__(self, vocab=200, dim=64, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 128, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        return self.layers(self.embed(tokens)).mean(1)


class SentimentModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = TextEncoder()
        self.classifier = nn.Linear(64, 2)

    def forward(self, tokens):
        return self.classifier(self.backbone(tokens))


def param_groups(model, lr):
    return [
        {"params": model.backbone.parameters(), "lr": 0.0},  # expect: wasted-gradient
        {"params": model.classifier.parameters(), "lr": lr},
    ]


def main():
    torch.manual_seed(37)
    model = SentimentModel()
    optimizer = AdamW(param_groups(model, lr=1e-2), weight_decay=0.01)
    tokens = torch.randint(200, (96, 16))
    labels = (tokens.float().mean(1) > 100).long()
    for epoch in range(2):
        for batch in torch.randperm(96).split(24):
            loss = nn.functional.cross_entropy(model(tokens[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
