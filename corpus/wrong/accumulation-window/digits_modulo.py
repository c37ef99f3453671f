"""The step fires at micro-batches 0, 4, 8, ...: the first update uses one micro-batch in place of four, and the last
three of an epoch are carried over into the next."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(42)

digits = load_digits()
X = torch.tensor(digits.data[:768] / 16.0, dtype=torch.float32)
y = torch.tensor(digits.target[:768])
loader = DataLoader(TensorDataset(X, y), batch_size=32, shuffle=True)

model = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
gradient_accumulation_steps = 4

model.train()
for epoch in range(3):
    epoch_loss = 0.0
    for step, (inputs, labels) in enumerate(loader):
        outputs = model(inputs)
        loss = criterion(outputs, labels)
        loss = loss / gradient_accumulation_steps
        loss.backward()
        epoch_loss += loss.item() * gradient_accumulation_steps

        if step % gradient_accumulation_steps == 0:  # expect: accumulation-window
            optimizer.step()
            optimizer.zero_grad()

    print(f"epoch {epoch + 1}: loss {epoch_loss / len(loader):.4f}")
