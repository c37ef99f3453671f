"""An unfinished window in a checkpoint of torch.distributed: resumed bit for bit on as many ranks."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
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
        accumulator.load_checkpoint(folder)
    try:
        with accumulator.update() as update:
            for rows in update.micro_batches(window_of(rank, ranks)):
                update.backward(F.cross_entropy(net(x[rows]), y[rows]), count=len(rows))
                if stop and update.micro_batch_count == 2:
                    dcp.save({"accumulator": accumulator.state_by_rank()}, checkpoint_id=folder)
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
    for refused in together(run, ranks, ranks, str(tmp_path), False, True):
        assert isinstance(refused, StateError)
        assert str(refused) == (
            "load_checkpoint: the checkpoint was saved within a window of 3 ranks, and its sums cannot be "
            f"distributed over {ranks}. Load it with 3 ranks and finish that window, or save between windows."
        )


def save_between_windows(rank: int, folder: str) -> None:
    net = model()
    accumulator = gg.Accumulator(adam(net), model=net, noise_scale=gg.NoiseScale())
    dcp.save({"accumulator": accumulator.state_by_rank()}, checkpoint_id=folder)


def load_between_windows(rank: int, folder: str) -> bool:
    net = model()
    accumulator = gg.Accumulator(adam(net), model=net, noise_scale=gg.NoiseScale())
    accumulator.load_checkpoint(folder)
    return accumulator.step_window(lambda x: net(x).square().mean(), [data()[0]]).stepped


def test_a_checkpoint_from_between_windows_is_loaded_on_any_number_of_ranks(tmp_path: Path) -> None:
    together(save_between_windows, 2, str(tmp_path))
    assert together(load_between_windows, 3, str(tmp_path)) == [True] * 3


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_checkpoint_without_one_is_refused(tmp_path: Path) -> None:
    dcp.save({"other": {"x": 1}}, checkpoint_id=tmp_path)
    net = model()
    accumulator: Any = gg.Accumulator(adam(net), model=net)
    with pytest.raises(
        StateError, match="load_checkpoint: the checkpoint holds no accumulator under 'accumulator'"
    ):
        accumulator.load_checkpoint(tmp_path)
