"""An unfinished window that each rank saved: resumed bit for bit on as many ranks."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import gradgate as gg
from gradgate.errors import StateError
from tests.ranks.processes import together
from tests.ranks.work import SAMPLES, adam, data, model, values

pytestmark = pytest.mark.slow

DONE = [[[0, 1, 2], [3]], [[4, 5], [6, 7, 8, 9]], [[10], [11, 12]]]  # by rank, before the stop
LEFT = list(range(13, SAMPLES))


class StopError(Exception):
    pass


def window_of(rank: int, ranks: int) -> list[list[int]]:
    """Each rank's window: what was done by three of them, and its share of what was left."""
    return [*DONE[rank], LEFT[rank::ranks]]


def run(rank: int, ranks: int, folder: str, stop: bool, resume: bool) -> list[Tensor]:
    net, (x, y) = model(), data()
    accumulator = gg.Accumulator(adam(net), model=net)
    if resume:
        accumulator.load_state_dict(torch.load(f"{folder}/{rank}.pt"))
    try:
        with accumulator.update() as update:
            for rows in update.micro_batches(window_of(rank, ranks)):
                update.backward(F.cross_entropy(net(x[rows]), y[rows]), count=len(rows))
                if stop and update.micro_batch_count == 2:
                    torch.save(accumulator.state_dict(), f"{folder}/{rank}.pt")
                    raise StopError
    except StopError:
        return []
    return values(net)


def test_as_many_ranks_go_on_bit_for_bit(tmp_path: Path) -> None:
    through = together(run, 3, 3, str(tmp_path), False, False)
    together(run, 3, 3, str(tmp_path), True, False)
    resumed = together(run, 3, 3, str(tmp_path), False, True)
    for one, other in zip(through, resumed, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("ranks", [1, 2])
def test_on_another_number_of_ranks_an_unfinished_window_is_refused(tmp_path: Path, ranks: int) -> None:
    together(run, 3, 3, str(tmp_path), True, False)
    for rank, refused in enumerate(together(run, ranks, ranks, str(tmp_path), False, True)):
        assert isinstance(refused, StateError)
        assert str(refused) == (
            f"load_state_dict: the unfinished window was saved by rank {rank} of 3, but this is rank {rank} of "
            f"{ranks}, and its sums cannot be distributed anew. Load it on as many ranks, each with its own state, "
            "and finish that window, or save between windows."
        )
