"""The examples with several ranks, started as torchrun does, on CPUs."""

import re
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits  # type: ignore[import-untyped]
from torch import Tensor, nn

from tests.ranks.processes import torchrun

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ROUNDING = 1e-12  # float64; an epoch of sums over at most 168 digits


@cache
def printed_by(name: str) -> str:
    """Return what rank 0 prints, with every run of spaces as one."""
    for _ in range(2):
        ran = torchrun(EXAMPLES / f"{name}.py")
        # torch 2.13 with gloo: a process that ends aborts now and then, one of its threads being still there.
        if "terminate called without an active exception" not in ran.stderr:
            break
    assert ran.returncode == 0, ran.stderr
    return re.sub(" +", " ", ran.stdout)


def number_after(words: str, printed: str) -> float:
    (found,) = re.findall(rf"^ {re.escape(words)} (\S+)$", printed, re.MULTILINE)
    return float(found)


def digits() -> tuple[Tensor, Tensor]:
    x, y = map(torch.from_numpy, load_digits(return_X_y=True))
    return x / 16, y


SHARES = [32, 32, 32], [32, 32, 8]  # of 168 digits
SIZES = [*SHARES[0], *SHARES[1]]


def test_ddp_weighs_the_items_of_a_short_micro_batch_too_much_and_gradgate_does_not() -> None:
    printed = printed_by("ddp")
    assert printed.startswith("2 ranks (cpu, gloo); the first 168 digits, for one update:\n")
    for rank, sizes in enumerate(SHARES):
        assert f" rank {rank} takes {', '.join(map(str, sizes))}\n" in printed
    # The mean over ranks of the means over micro-batches gives an item 1 / (2 x 3 x n), not 1 / 168.
    weights = torch.cat([torch.full((n,), 1 / (2 * 3 * n)) for n in SIZES]).double()
    assert weights[-1] * 168 == pytest.approx(3.5)
    assert weights[0] * 168 == pytest.approx(0.875)
    assert "a digit of the shortest micro-batch weighs 3.500 times, the others 0.875 times\n" in printed
    # A linear model at zero gives each class a tenth: an item's gradient is (1 / 10 - its label) times its pixels.
    x, y = (part[:168] for part in digits())
    off = 0.1 - F.one_hot(y, 10).double()
    whole, plain = off.T @ x / 168, off.T @ (weights[:, None] * x)
    error = float((plain - whole).abs().max() / whole.abs().max())
    assert number_after("plain DDP loop", printed) == pytest.approx(
        error, abs=0.005
    )  # two digits are printed
    assert error > 0.5
    assert "from those of one process after 11 updates, an epoch:\n" in printed  # 1797 / 168
    errors = re.findall(r"^ gradgate (\S+)$", printed, re.MULTILINE)
    assert len(errors) == 2
    assert max(map(float, errors)) < ROUNDING


def test_fsdp2_averages_too_and_gradgate_adds_up_unequal_micro_batches_and_numbers_of_them() -> None:
    printed = printed_by("fsdp2")
    # 64 x 32 + 32 and 32 x 10 + 10 numbers, cut in two along the first dimension.
    assert printed.startswith("2 ranks (cpu, gloo); rank 0 holds 1205 of 2410 parameters\n")
    assert "update 1, of 168 digits:\n rank 0 takes 32, 32, 32\n rank 1 takes 32, 32, 8\n" in printed
    assert "update 2, of 136 digits:\n rank 0 takes 32, 32, 32\n rank 1 takes 32, 8\n" in printed

    # The slow truth: one process, and the mean of the means of all micro-batches.
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10)).double()
    x, y = (part[:168] for part in digits())

    def gradient(loss: Tensor) -> Tensor:
        return torch.cat([one.flatten() for one in torch.autograd.grad(loss, list(model.parameters()))])

    parts = zip(x.split(SIZES), y.split(SIZES), strict=True)
    whole = gradient(F.cross_entropy(model(x), y))
    plain = sum(gradient(F.cross_entropy(model(rows), labels)) for rows, labels in parts) / 6
    error = float((plain - whole).abs().max() / whole.abs().max())
    assert number_after("plain FSDP2 loop", printed) == pytest.approx(
        error, abs=0.005
    )  # two digits are printed
    assert error > 0.5
    for words in ("gradgate, sync='last'", "gradgate, sync='every'", "gradgate"):
        assert number_after(words, printed) < ROUNDING
