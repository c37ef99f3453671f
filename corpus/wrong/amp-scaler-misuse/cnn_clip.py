"""The norm is clipped to 1 while the gradients still carry the scale of 65536, which then divides them: the
first gradient is 1/42000 of what it should be, and the loss does not move in 12 steps.
"""

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
device = "cpu"

model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3, padding=1),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(8 * 4 * 4, 4),
).to(device)

labels = torch.randint(4, (96,))
images = 0.3 * torch.randn(96, 1, 8, 8)
for k in range(4):
    images[labels == k, :, 2 * k : 2 * k + 2] += 0.5
train_loader = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)

criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scaler = torch.amp.GradScaler(device)

for epoch in range(2):
    total_loss = 0.0
    for x, y in train_loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad(set_to_none=True)

        with torch.autocast(device_type=device, dtype=torch.float16):
            loss = criterion(model(x), y)

        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # expect: amp-scaler-misuse
        scaler.step(optimizer)
        scaler.update()
        total_loss += loss.item()
    print(f"epoch {epoch} loss {total_loss / len(train_loader):.4f}")
