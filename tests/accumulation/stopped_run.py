"""A training run as a script: stops between two micro-batches and saves, or loads and goes on.

``python stopped_run.py stop|resume|whole FOLDER``: the three print nothing and leave their state in FOLDER.
"""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ExponentialLR

import gradgate as gg

WINDOWS, SIZES, STOP_AT = 4, (3, 1, 2, 4), (2, 2)  # in window 2, after micro-batch 2
RUNS: dict[str, dict[str, Any]] = {
    "momentum": {},
    "AdamW": {"optimizer": AdamW, "options": {"clip_norm": 0.5}},
    "zero": {"options": {"clear": "zero"}},
    "decay": {"options": {"clear": gg.decay(0.5)}},
    "scaler": {"scaler": True},
    "bfloat16 AdamW": {"optimizer": AdamW, "dtype": torch.bfloat16},
    "bfloat16 decay": {"dtype": torch.bfloat16, "options": {"clear": gg.decay(0.5)}},
    "two losses": {"losses": 2},
    "unknown length": {"known": False},
}


class Run:
    """One of the runs above: everything that a checkpoint holds, and its data."""

    def __init__(self, name: str) -> None:
        settings = RUNS[name]
        torch.manual_seed(0)
        self.dtype = settings.get("dtype", torch.float32)
        self.losses, self.known = settings.get("losses", 1), settings.get("known", True)
        self.model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 2)).to(self.dtype)
        optimizer = settings.get("optimizer")
        parameters = self.model.parameters()
        self.optimizer = optimizer(parameters, lr=0.1) if optimizer else SGD(parameters, lr=0.1, momentum=0.9)
        self.scheduler = ExponentialLR(self.optimizer, 0.9)
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
            if "scaler" in settings
            else None
        )
        self.accumulator = gg.Accumulator(
            self.optimizer, scheduler=self.scheduler, scaler=self.scaler, **settings.get("options", {})
        )
        data = torch.Generator().manual_seed(1)
        self.windows = [
            [torch.randn(n, 3, generator=data).to(self.dtype) for n in SIZES] for _ in range(WINDOWS)
        ]

    def states(self) -> dict[str, Any]:
        own = [self.model, self.optimizer, self.scheduler, self.accumulator]
        states = {type(one).__name__: one.state_dict() for one in own}
        if self.scaler is not None:
            states["GradScaler"] = self.scaler.state_dict()
        return {**states, "random": torch.get_rng_state()}

    def load(self, states: dict[str, Any]) -> None:
        own = [self.model, self.optimizer, self.scheduler, self.accumulator]
        for one in own if self.scaler is None else [*own, self.scaler]:
            one.load_state_dict(states[type(one).__name__])
        torch.set_rng_state(states["random"])

    def train(self, windows: range, stop: Path | None = None) -> None:
        for number in windows:
            window = self.windows[number]
            with self.accumulator.update() as update:
                for done, x in enumerate(update.micro_batches(window if self.known else iter(window)), 1):
                    for _ in range(self.losses):
                        update.backward(self.model(x).float().pow(2).mean())
                    if stop is not None and (number, done) == STOP_AT:
                        torch.save(self.states(), stop)
                        return


def main(mode: str, folder: Path) -> None:
    torch.set_num_threads(1)
    for name in RUNS:
        run, saved = Run(name), folder / f"{name}.pt"
        if mode == "stop":
            run.train(range(WINDOWS), stop=saved)
            continue
        if mode == "resume":
            run.load(torch.load(saved, weights_only=True))
            run.train(range(STOP_AT[0], WINDOWS))
        else:
            run.train(range(WINDOWS))
        torch.save(run.states(), folder / f"{name}.{mode}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
