"""Mixed precision with a gradient scaler. The gradients are clipped while they are still
multiplied by the scale, so nearly everything is clipped away."""
import torch
from torch import nn
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler


class Config:
    lr = 0.1
    momentum = 0.9
    batch_size = 128
    epochs = 2
    max_grad_norm = 1.0
    init_scale = 2.0 ** 10


class AmpTrainer:
    def __init__(self, model, cfg):
        self.model = model
        self.cfg = cfg
        self.optimizer = torch.optim.SGD(model.parameters(), lr=cfg.lr, momentum=cfg.momentum)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=cfg.init_scale)
        self.loss_fn = nn.CrossEntropyLoss()

    def step(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.model(x)
            loss = self.loss_fn(logits.float(), y)
        self.scaler.scale(loss).backward()  # expect: clip without unscale
        nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()

    def fit(self, x, y):
        self.model.train()
        for epoch in range(self.cfg.epochs):
            losses = []
            for idx in torch.randperm(len(x)).split(self.cfg.batch_size):
                losses.append(self.step(x[idx], y[idx]))
            print(f"epoch {epoch}: first {losses[0]:.3f} last {losses[-1]:.3f}")


def main():
    torch.manual_seed(2)
    X, y = load_digits(return_X_y=True)
    X = torch.tensor(StandardScaler().fit_transform(X), dtype=torch.float32)
    y = torch.tensor(y)
    model = nn.Sequential(
        nn.Linear(64, 64), nn.GELU(),
        nn.Linear(64, 64), nn.GELU(),
        nn.Linear(64, 10),
    )
    AmpTrainer(model, Config).fit(X, y)


if __name__ == "__main__":
    main()
