"""The keypoint loss sums over the batch while the action loss is a mean, so the keypoint term grows with the batch size and drowns the other task."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Batch(NamedTuple):
    signal: Tensor
    keypoints: Tensor
    action: Tensor


@dataclass
class HParams:
    batch_size: int = 32
    epochs: int = 3
    steps_per_epoch: int = 6
    lr: float = 2e-3
    keypoint_weight: float = 1.0
    action_weight: float = 1.0
    max_norm: float = 1.0


class PoseNet(nn.Module):
    def __init__(self, channels: int = 3, n_keypoints: int = 4, n_actions: int = 3):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(channels, 12, 5, padding=2),
            nn.GroupNorm(3, 12),
            nn.SiLU(),
            nn.Conv1d(12, 12, 5, stride=2, padding=2),
            nn.GroupNorm(3, 12),
            nn.SiLU(),
        )
        self.keypoints = nn.Linear(12, n_keypoints * 2)
        self.action = nn.Linear(12, n_actions)

    def forward(self, signal: Tensor) -> tuple[Tensor, Tensor]:
        h = self.stem(signal).mean(-1)
        return self.keypoints(h).view(len(signal), -1, 2), self.action(h)


class PoseObjective(nn.Module):
    def __init__(self, hp: HParams):
        super().__init__()
        self.hp = hp
        self.keypoint_loss = nn.MSELoss(reduction="sum")  # expect: loss-reduction
        self.action_loss = nn.CrossEntropyLoss()

    def forward(self, prediction: tuple[Tensor, Tensor], batch: Batch) -> Tensor:
        keypoints, logits = prediction
        return self.hp.keypoint_weight * self.keypoint_loss(  # expect: loss-reduction
            keypoints, batch.keypoints
        ) + self.hp.action_weight * self.action_loss(logits, batch.action)


def simulate(n: int) -> Batch:
    action = torch.randint(0, 3, (n,))
    t = torch.linspace(0, 6.28, 20)
    freq = (action + 1).float().view(-1, 1, 1)
    amplitude = 0.5 + torch.rand(n, 3, 1)
    signal = amplitude * torch.sin(freq * t) + 0.1 * torch.randn(n, 3, 20)
    mixing = torch.linspace(-1, 1, 24).view(8, 3)
    return Batch(signal, (amplitude.squeeze(-1) @ mixing.T).view(n, 4, 2), action)


def main() -> None:
    torch.manual_seed(76)
    torch.set_num_threads(1)
    hp = HParams()
    model, objective = PoseNet(), PoseObjective(hp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=hp.lr)
    val = simulate(100)
    for epoch in range(hp.epochs):
        model.train()
        for _ in range(hp.steps_per_epoch):
            batch = simulate(hp.batch_size)
            loss = objective(model(batch.signal), batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), hp.max_norm)
            optimizer.step()
        model.eval()
        with torch.no_grad():
            keypoints, logits = model(val.signal)
        err = (keypoints - val.keypoints).norm(dim=-1).mean().item()
        acc = (logits.argmax(1) == val.action).float().mean().item()
        print(f"epoch {epoch} keypoint error {err:.3f} action acc {acc:.3f}")


if __name__ == "__main__":
    main()
