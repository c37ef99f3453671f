"""The gradients are clipped while they are still multiplied by the loss scale (2**16), so that after unscaling their
norm is at most 1/65536 of the intended bound."""

import torch
import torch.nn as nn

torch.manual_seed(0)


class MLPMixer(nn.Module):
    def __init__(self, tokens=9, dim=16, classes=3):
        super().__init__()
        self.token_mix = nn.Sequential(nn.Linear(tokens, 24), nn.GELU(), nn.Linear(24, tokens))
        self.chan_mix = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.fc = nn.Linear(dim, classes)

    def forward(self, x):
        x = x + self.token_mix(self.n1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.chan_mix(self.n2(x))
        return self.fc(x.mean(1))


y = torch.randint(0, 3, (240,))
x = torch.randn(240, 9, 16)
x[torch.arange(240), y * 3] += 1.5
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=24, shuffle=True)

model = MLPMixer()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler("cpu")
criterion = nn.CrossEntropyLoss()

for epoch in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = criterion(model(inputs), targets)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # expect: amp-scaler-misuse
        scaler.step(optimizer)
        scaler.update()
    print(f"epoch {epoch}: loss {loss.item():.4f}, scale {scaler.get_scale():.0f}")
