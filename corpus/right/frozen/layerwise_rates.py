"""Looks like a mistake in the groups: every layer has its own rate, the embedding's is all but zero, and
norms and biases are without decay."""

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, vocab=30, dim=32, layers=3):
        super().__init__()
        self.embeddings = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 4, 48, dropout=0.1, batch_first=True) for _ in range(layers)
        )
        self.classifier = nn.Linear(dim, 3)

    def forward(self, ids):
        h = self.embeddings(ids)
        for layer in self.layers:
            h = layer(h)
        return self.classifier(h[:, 0])


def layer_id(name, n_layers):
    if name.startswith("embeddings"):
        return 0
    if name.startswith("layers."):
        return int(name.split(".")[1]) + 1
    return n_layers + 1


def param_groups(model, lr, weight_decay, layer_decay):
    n = len(model.layers)
    groups = {}
    for name, p in model.named_parameters():
        depth, decay = layer_id(name, n), p.ndim > 1
        group = groups.setdefault(
            (depth, decay),
            {
                "params": [],
                "lr": lr * layer_decay ** (n + 1 - depth),
                "weight_decay": weight_decay if decay else 0.0,
            },
        )
        group["params"].append(p)
    return list(groups.values())


def main():
    torch.manual_seed(0)
    ids = torch.randint(30, (72, 8))
    labels = ids[:, 0] % 3
    model = Encoder().train()
    optimizer = torch.optim.AdamW(param_groups(model, 2e-3, 0.05, layer_decay=0.1))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
    for epoch in range(2):
        for batch in torch.randperm(72).split(24):
            model.zero_grad(set_to_none=True)
            loss = nn.functional.cross_entropy(model(ids[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.3f} groups {len(optimizer.param_groups)}")


if __name__ == "__main__":
    main()
