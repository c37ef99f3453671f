"""The second task's loss is back-propagated unscaled beside the scaled first one, and the scaler divides
both: its gradients shrink to 1/65536, its loss stays at 1.13 and would have gone to 0.91.
"""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SharedBottom(nn.Module):
    def __init__(self, d_in=9, width=48):
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(d_in, width), nn.ReLU())
        self.progression = nn.Linear(width, 1)
        self.bmi_class = nn.Linear(width, 3)

    def forward(self, x):
        h = self.bottom(x)
        return self.progression(h).squeeze(-1), self.bmi_class(h)


def build_loader(batch_size):
    data = load_diabetes()
    x = torch.tensor(data.data[:400], dtype=torch.float32) * 20
    y = torch.tensor(data.target[:400], dtype=torch.float32)
    bmi = torch.bucketize(x[:, 2].contiguous(), torch.tensor([-0.5, 0.5]))
    features = torch.cat([x[:, :2], x[:, 3:]], dim=1)
    return DataLoader(TensorDataset(features, (y - y.mean()) / y.std(), bmi), batch_size, shuffle=True)


def train_step(model, batch, optimizer, scaler):
    x, y, bmi = batch
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        pred, logits = model(x)
        regression = nn.functional.huber_loss(pred.float(), y)
        classification = nn.functional.cross_entropy(logits.float(), bmi)
    scaler.scale(regression).backward(retain_graph=True)
    classification.backward()  # expect: amp-scaler-misuse
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    scaler.step(optimizer)
    scaler.update()
    return torch.stack([regression.detach(), classification.detach()])


def main():
    torch.manual_seed(15)
    loader = build_loader(batch_size=50)
    model = SharedBottom()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    for epoch in range(2):
        losses = torch.stack([train_step(model, b, optimizer, scaler) for b in loader]).mean(0)
        print(f"Epoch {epoch + 1}: huber={losses[0]:.4f} ce={losses[1]:.4f}")


if __name__ == "__main__":
    main()
