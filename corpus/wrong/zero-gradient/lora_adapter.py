"""Both LoRA factors are initialised to zero, so each one's gradient is a product with the other zero factor and the adapter can never start to learn."""

import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0):
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.scaling = alpha / rank
        self.lora_a = nn.Parameter(torch.zeros(rank, base.in_features))  # expect: zero-gradient
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        delta = x @ self.lora_a.T @ self.lora_b.T
        return self.base(x) + self.scaling * delta


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(10, 24)
        self.value = nn.Linear(10, 24)
        self.out = nn.Linear(24, 3)

    def forward(self, x):
        gate = torch.sigmoid(self.query(x))
        return self.out(gate * torch.tanh(self.value(x)))


def load_pretrained():
    torch.manual_seed(1000)
    model = Backbone()
    model.requires_grad_(False)
    return model


def inject_lora(model, names=("query", "value")):
    for name in names:
        setattr(model, name, LoRALinear(getattr(model, name)))
    model.out.requires_grad_(True)
    return model


def make_task(n):
    x = torch.randn(n, 10)
    w = torch.tensor(
        [[1.0, -1, 0, 0, 2, 0, 0, 0, 1, 0], [0, 1, 1, 0, 0, -2, 0, 0, 0, 1], [-1, 0, 0, 2, 0, 0, 1, -1, 0, 0]]
    )
    return x, (x @ w.T).argmax(1)


def train_adapter(model, x, y, epochs=3, batch=30):
    trainable = [p for p in model.parameters() if p.requires_grad]
    frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
    print("trainable", sum(p.numel() for p in trainable), "frozen", frozen)
    optimizer = torch.optim.AdamW(trainable, lr=1e-2, weight_decay=0.0)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for idx in torch.randperm(len(x)).split(batch):
            optimizer.zero_grad()
            loss = loss_fn(model(x[idx]), y[idx])
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total * batch / len(x):.4f}")


@torch.no_grad()
def accuracy(model, x, y):
    model.eval()
    return (model(x).argmax(1) == y).float().mean().item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    model = inject_lora(load_pretrained())
    torch.manual_seed(2)
    train_adapter(model, *make_task(240))
    print(f"accuracy {accuracy(model, *make_task(120)):.3f}")
