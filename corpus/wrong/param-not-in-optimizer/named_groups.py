"""The parameters are put in groups by whether their name ends in `weight` or `bias`, so the learned class token and
layer scale are in neither group."""

import torch
from torch import nn

torch.manual_seed(5)


class TinyViT(nn.Module):
    def __init__(self, dim=24, n_classes=3):
        super().__init__()
        self.patch = nn.Linear(4, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Embedding(17, dim)
        self.norm = nn.LayerNorm(dim)
        self.attn = nn.MultiheadAttention(dim, 4, batch_first=True)
        self.gamma = nn.Parameter(0.1 * torch.ones(dim))
        self.head = nn.Linear(dim, n_classes)

    def forward(self, img):
        patches = img.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(img), 16, 4)
        h = torch.cat([self.cls_token.expand(len(img), -1, -1), self.patch(patches)], 1)
        h = h + self.pos(torch.arange(17))
        q = self.norm(h)
        h = h + self.gamma * self.attn(q, q, q, need_weights=False)[0]
        return self.head(h[:, 0])


def param_groups(model, weight_decay):
    decay = [p for n, p in model.named_parameters() if n.endswith("weight")]
    no_decay = [
        p for n, p in model.named_parameters() if n.endswith("bias")
    ]  # expect: param-not-in-optimizer
    return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]


labels = torch.randint(0, 3, (240,))
images = torch.randn(240, 8, 8) * 0.5
for n, k in enumerate(labels.tolist()):
    images[n, 2 * k : 2 * k + 3, 2:6] += 1.0

model = TinyViT()
optimizer = torch.optim.AdamW(param_groups(model, 0.05), lr=4e-3)
for epoch in range(3):
    total, right = 0.0, 0
    for idx in torch.randperm(240).view(-1, 24):
        logits = model(images[idx])
        loss = nn.functional.cross_entropy(logits, labels[idx], label_smoothing=0.1)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total += loss.item() / 10
        right += (logits.argmax(1) == labels[idx]).sum().item()
    print(f"epoch {epoch}: loss {total:.3f} acc {right / 240:.3f}")
