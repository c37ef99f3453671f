"""Loops that are watched, for pages to be made of."""

import functools

import torch
import torch.nn.functional as F
from torch import nn

import gradgate as gg
from gradgate.checker import watch
from gradgate.checker.reports import Report


@functools.cache
def adversaries() -> Report:
    """A GAN whose losses also reach the other network."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    critic = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    opt_c = torch.optim.Adam(critic.parameters(), lr=1e-3)
    with watch() as watching:
        for _ in range(5):
            fake = generator(torch.randn(16, 4))
            c_loss = F.softplus(critic(fake)).mean() + F.softplus(-critic(torch.randn(16, 3))).mean()
            opt_c.zero_grad()
            c_loss.backward()
            opt_c.step()
            g_loss = F.softplus(-critic(generator(torch.randn(16, 4)))).mean()
            opt_g.zero_grad()
            g_loss.backward()
            opt_g.step()
    return watching.report


@functools.cache
def accumulated() -> Report:
    """Windows of four micro-batches, the first of which is too short; clipped, scheduled, planned."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    unused = nn.Linear(3, 3)
    optimizer = torch.optim.SGD([*model.parameters(), *unused.parameters()], lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    data = [(torch.randn(8, 6), torch.randint(3, (8,))) for _ in range(12)]
    with watch() as watching:
        gg.plan(
            lambda x: model(x).square().mean(), torch.randn(128, 6), budget_bytes="16KiB", optimizer=optimizer
        )
        for _ in range(4):
            for i, (x, y) in enumerate(data):
                loss = F.cross_entropy(model(x), y)
                (loss / 4).backward()
                if i % 4 == 0:
                    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
    return watching.report


@functools.cache
def deep() -> Report:
    """More modules than a figure shows at once, and a step after the first of four micro-batches."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(24)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watch() as watching:
        for i in range(12):
            (model(torch.randn(8, 4)).square().mean() / 4).backward()
            if i % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
    return watching.report


@functools.cache
def sampled() -> Report:
    """A run that is long enough to be watched in parts, whose names are too long for a narrow page."""
    torch.manual_seed(0)
    names = [f"encoder_with_a_name_that_is_too_long_for_a_narrow_page_{number}" for number in range(3)]
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})
    optimizer_of_the_whole_encoder = torch.optim.SGD(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer_of_the_whole_encoder, 0.95)
    with watch() as watching:
        for _ in range(300):
            x = torch.randn(8, 4)
            for layer in model.values():
                x = layer(x)
            (x.square().mean() * 1.0).backward()
            optimizer_of_the_whole_encoder.step()
            optimizer_of_the_whole_encoder.zero_grad()
            scheduler.step()
    return watching.report


class Hostile(nn.Module):
    """Names that would be markup, or end the script that holds them, if anybody took them for it."""

    NAME = "</script><script>document.title='owned'</script><b>&amp;</b>"

    def __init__(self) -> None:
        super().__init__()
        self._parameters[self.NAME] = nn.Parameter(torch.ones(3))
        self._modules["<img src=x onerror=document.title='owned'>"] = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for module in self.children():
            x = module(x * self._parameters[self.NAME])
        return x


@functools.cache
def hostile() -> Report:
    model = Hostile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch() as watching:
        for _ in range(4):
            # never cleared: <script>document.title='owned'</script> </script>
            model(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    return watching.report


EVERY = {"adversaries": adversaries, "accumulated": accumulated, "hostile": hostile, "sampled": sampled}
