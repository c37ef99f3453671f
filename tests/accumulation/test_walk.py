"""How far a reader has to walk: the files that one steady update goes through."""

import os
import sys
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from torch import nn

import gradgate as gg

PACKAGE = os.path.join(os.path.dirname(gg.__file__), "")  # noqa: PTH118, PTH120 - compared with a frame's text


def calls_of(train: Any) -> list[str]:
    """Return the file of each call of a function of gradgate, in their order."""
    files: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(PACKAGE):
            files.append(name.removeprefix(PACKAGE))

    usual = sys.getprofile()
    sys.setprofile(note)
    try:
        train()
    finally:
        sys.setprofile(usual)
    return files


def test_a_steady_update_of_three_micro_batches_goes_through_eight_files() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=model, clip_norm=1.0)
    window = list(torch.randn(12, 4).split(4))

    def train() -> None:
        with accumulator.update() as update:
            for x in update.micro_batches(window):
                update.backward(model(x).square().mean(), count=len(x))

    first = calls_of(train)
    for _ in range(20):
        train()
    steady = calls_of(train)
    assert len({*steady}) <= 8, {*steady}
    assert sum(before != after for before, after in pairwise(steady)) <= 30
    assert len({*first}) > 8  # so that the counts above can fail
