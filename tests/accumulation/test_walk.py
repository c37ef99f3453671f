"""How far a reader has to walk: the files that one steady update goes through."""

from pathlib import Path

from tests.interpreter import python

PROGRAM = """
import sys
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import gradgate as gg

PACKAGE = f"{Path(gg.__file__).parent}/"

def calls_of(train):
    files = []

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            files.append(frame.f_code.co_filename.removeprefix(PACKAGE))

    sys.setprofile(note)
    train()
    sys.setprofile(None)
    return files

model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model, clip_norm=1.0)
window = list(torch.randn(12, 4).split(4))

def train():
    with accumulator.update() as update:
        for x in update.micro_batches(window):
            update.backward(model(x).square().mean(), count=len(x))

first = calls_of(train)
for _ in range(20):
    train()
steady = calls_of(train)
print(len({*first}), len({*steady}), sum(before != after for before, after in pairwise(steady)))
"""


def test_a_steady_update_of_three_micro_batches_goes_through_eight_files(tmp_path: Path) -> None:
    done = python("-c", PROGRAM, cwd=tmp_path)  # on its own, because other tests leave hooks
    first, files, changes = map(int, done.stdout.split())
    assert files <= 8
    assert changes <= 30
    assert first > 8  # so that the first assertion can fail
