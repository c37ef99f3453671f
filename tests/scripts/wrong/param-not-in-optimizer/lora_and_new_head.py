"""All but the LoRA matrices is frozen, and with it the classifier, which the checkpoint does not have: it stays random."""

import torch
from torch import nn


class LoRALinear(nn.Linear):
    def __init__(self, n_in, n_out, rank=2):
        super().__init__(n_in, n_out)
        self.lora_a = nn.Parameter(torch.randn(rank, n_in) / n_in)
        self.lora_b = nn.Parameter(torch.zeros(n_out, rank))

    def forward(self, x):
        return super().forward(x) + x @ self.lora_a.T @ self.lora_b.T


class Classifier(nn.Module):
    def __init__(self, linear, n_features=12, width=24, n_classes=4):
        super().__init__()
        self.body = nn.Sequential(linear(n_features, width), nn.ReLU(), linear(width, width), nn.ReLU())
        self.classifier = nn.Linear(width, n_classes)

    def forward(self, x):
        return self.classifier(self.body(x))


def pretrained_body():
    torch.manual_seed(7)
    state = Classifier(nn.Linear, n_classes=100).state_dict()
    return {name: value for name, value in state.items() if name.startswith("body")}


def build():
    model = Classifier(LoRALinear)
    model.load_state_dict(pretrained_body(), strict=False)
    for name, parameter in model.named_parameters():  # expect: param-not-in-optimizer
        if "lora_" not in name:
            parameter.requires_grad_(False)
    return model


def main():
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    truth = torch.randn(12, 4)
    for step in range(20):
        x = torch.randn(64, 12)
        loss = nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
