"""The weights name two of the three tasks, so the normals head is never trained: 2 of 10 tensors are at rest,
and the cosine loss ends at 1.01, where it would be 0.91."""

import torch
import torch.nn as nn
import torch.nn.functional as F

CONFIG = {
    "seed": 11,
    "epochs": 2,
    "batch_size": 16,
    "lr": 0.05,
    "heads": {"depth": 1, "normals": 3, "labels": 6},
    "weights": {"depth": 1.0, "labels": 0.5},  # expect: unreached-parameter
}


class MultiTask(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU()
        )
        self.heads = nn.ModuleDict({name: nn.Conv2d(16, width, 1) for name, width in heads.items()})

    def forward(self, image):
        features = self.trunk(image)
        return {name: head(features) for name, head in self.heads.items()}


def task_losses(out, batch):
    return {
        "depth": F.l1_loss(out["depth"], batch["depth"]),
        "normals": 1 - F.cosine_similarity(out["normals"], batch["normals"], dim=1).mean(),
        "labels": F.cross_entropy(out["labels"], batch["labels"]),
    }


def make_scenes(n=64):
    image = torch.rand(n, 3, 12, 12)
    depth = image.mean(1, keepdim=True)
    normals = F.normalize(image - 0.5, dim=1)
    labels = (image[:, 0] * 5.99).long()
    return {"image": image, "depth": depth, "normals": normals, "labels": labels}


def run(config):
    torch.manual_seed(config["seed"])
    data = make_scenes()
    net = MultiTask(config["heads"])
    opt = torch.optim.SGD(net.parameters(), lr=config["lr"], momentum=0.9)
    for epoch in range(config["epochs"]):
        for index in torch.randperm(len(data["image"])).split(config["batch_size"]):
            batch = {key: value[index] for key, value in data.items()}
            losses = task_losses(net(batch["image"]), batch)
            total = sum(weight * losses[name] for name, weight in config["weights"].items())
            opt.zero_grad()
            total.backward()
            opt.step()
        print(epoch, {name: round(value.item(), 3) for name, value in losses.items()})


run(CONFIG)
