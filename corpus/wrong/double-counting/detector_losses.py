"""The loss dictionary also holds the proposal subtotal, so summing its values counts the objectness and proposal box terms twice."""

from typing import Dict, List

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def make_scene(n: int) -> Dict[str, Tensor]:
    feats = torch.randn(n, 10)
    present = (feats[:, 0] + 0.3 * torch.randn(n) > 0).float()
    box = torch.stack([feats[:, 1], feats[:, 2], feats[:, 3].abs(), feats[:, 4].abs()], 1)
    label = (feats[:, 5] > 0).long() + (feats[:, 6] > 0.5).long()
    return {"feats": feats, "present": present, "box": box, "label": label}


class ProposalHead(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.objectness = nn.Linear(dim, 1)
        self.box = nn.Linear(dim, 4)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return self.objectness(h).squeeze(1), self.box(h)


class TwoStageDetector(nn.Module):
    def __init__(self, dim: int = 24, n_labels: int = 3):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(10, dim), nn.GELU(), nn.Linear(dim, dim), nn.GELU())
        self.rpn = ProposalHead(dim)
        self.roi_label = nn.Linear(dim + 4, n_labels)
        self.roi_box = nn.Linear(dim + 4, 4)

    def forward(self, feats: Tensor) -> Dict[str, Tensor]:
        h = self.backbone(feats)
        objectness, proposal = self.rpn(h)
        z = torch.cat([h, proposal], dim=1)
        return {
            "objectness": objectness,
            "proposal": proposal,
            "label": self.roi_label(z),
            "box": self.roi_box(z),
        }

    def losses(self, scene: Dict[str, Tensor]) -> Dict[str, Tensor]:
        out = self(scene["feats"])
        keep = scene["present"] > 0
        objectness = F.binary_cross_entropy_with_logits(out["objectness"], scene["present"])
        proposal = F.smooth_l1_loss(out["proposal"][keep], scene["box"][keep])
        return {
            "loss_objectness": objectness,
            "loss_rpn_box": proposal,
            "loss_rpn": objectness + proposal,  # expect: double-counting
            "loss_label": F.cross_entropy(out["label"][keep], scene["label"][keep]),
            "loss_roi_box": F.smooth_l1_loss(out["box"][keep], scene["box"][keep]),
        }


def train_one_epoch(model: TwoStageDetector, scenes: List[Dict[str, Tensor]], optimizer, epoch: int) -> None:
    model.train()
    sums: Dict[str, float] = {}
    for scene in scenes:
        loss_dict = model.losses(scene)
        loss = sum(value for value in loss_dict.values())  # expect: double-counting
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for k, v in loss_dict.items():
            sums[k] = sums.get(k, 0.0) + v.item()
    print(f"epoch {epoch} " + " ".join(f"{k[5:]} {v / len(scenes):.3f}" for k, v in sums.items()))


def main() -> None:
    torch.manual_seed(91)
    torch.set_num_threads(1)
    model = TwoStageDetector()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=3)
    scenes = [make_scene(32) for _ in range(8)]
    for epoch in range(3):
        train_one_epoch(model, scenes, optimizer, epoch)
        scheduler.step()


if __name__ == "__main__":
    main()
