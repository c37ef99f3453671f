"""Low-rank adapters on a frozen net. Both factors start at zero, so the gradient of each is zero
and the adapters never move."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class LoRALinear(nn.Module):
    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.scaling = alpha / rank
        self.lora_a = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_b = nn.Parameter(torch.empty(base.out_features, rank))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.zeros_(self.lora_a)  # expect: both factors zero
        nn.init.zeros_(self.lora_b)  # expect: both factors zero

    def forward(self, x):
        update = F.linear(F.linear(x, self.lora_a), self.lora_b)
        return self.base(x) + self.scaling * update


class Net(nn.Module):
    def __init__(self, dim=12, hidden=32, classes=4):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x):
        return self.head(F.relu(self.fc2(F.relu(self.fc1(x)))))


def fit(net, params, x, y, steps, lr):
    opt = torch.optim.AdamW(params, lr=lr, weight_decay=0.0)
    losses = []
    for _ in range(steps):
        idx = torch.randint(0, len(x), (64,))
        loss = F.cross_entropy(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses


def main():
    torch.manual_seed(70)
    x = torch.randn(500, 12)
    teacher = torch.randn(12, 4)
    net = Net()
    pre = fit(net, net.parameters(), x, (x @ teacher).argmax(1), steps=20, lr=1e-2)
    print(f"pretraining loss {pre[0]:.4f} -> {pre[-1]:.4f}")

    net.fc1 = LoRALinear(net.fc1)
    net.fc2 = LoRALinear(net.fc2)
    trainable = [p for p in net.parameters() if p.requires_grad]
    y_new = (x @ (teacher + 0.8 * torch.randn(12, 4))).argmax(1)
    post = fit(net, trainable, x, y_new, steps=20, lr=5e-3)
    print(f"adapter loss {post[0]:.4f} -> {post[-1]:.4f} with {sum(p.numel() for p in trainable)} weights")


main()
