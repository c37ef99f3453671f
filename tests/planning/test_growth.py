"""How memory grows with the samples: with each, with each pair, in steps; and what cannot be known is said."""

import itertools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradgate as gg
from gradgate.errors import BudgetError, EstimateWarning
from gradgate.planning import peak_memory

WIDTH = 12
torch.manual_seed(0)
MODEL = nn.Linear(WIDTH, 16)
WIDE = nn.Sequential(nn.Linear(WIDTH, 2 * 1009), nn.ReLU(), nn.Linear(2 * 1009, 2 * 1009))
QUEUE = torch.randn(40, 16)


def info_nce(x: Tensor) -> Tensor:
    z = F.normalize(MODEL(x), dim=1)
    return F.cross_entropy(z @ z.T / 0.1, torch.arange(len(x)))


def distances(x: Tensor) -> Tensor:
    return torch.cdist(MODEL(x), MODEL(x)).mean()


def triplets(x: Tensor) -> Tensor:
    z = MODEL(x)
    d = (z @ z.T).exp()
    return F.relu(d[:, :, None] - d[:, None, :] + 1).mean()


class PairsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return (x @ x.T).exp() @ x * grads[0]


def queue_of_older(x: Tensor) -> Tensor:
    z = torch.cat([MODEL(x), QUEUE])
    return (z @ z.T).exp().mean()


def halves(x: Tensor) -> Tensor:
    z, half = MODEL(x), len(x) // 2
    return (z[:half] - z[half : 2 * half]).exp().mean()


GROWTH: dict[str, Callable[[Tensor], Tensor]] = {
    "InfoNCE": info_nce,
    "cdist": distances,
    "triplets": triplets,
    "pairs in the backward pass only": lambda x: PairsInBackward.apply(MODEL(x)),
    "a queue of older ones": queue_of_older,
    "halves": halves,
    "an eighth": lambda x: MODEL(x).mean(1)[: -(-len(x) // 8)].exp().sin().mean(),
    "features that 1009 divides": lambda x: WIDE(x).mean(),
    "the result of a loss that is reduced in its place": lambda x: F.mse_loss(
        MODEL(x), torch.ones(len(x), 16)
    ),
}


def tracked(loss_fn: Callable[[Any], Tensor], micro: Any) -> int:
    loss_fn(micro).backward()
    with peak_memory() as memory:
        loss = loss_fn(micro)
        loss.backward()
        del loss
    return memory.peak_bytes


@pytest.mark.parametrize("name", GROWTH)
@pytest.mark.parametrize("measured", [False, True], ids=["fake", "measured"])
def test_the_peak_at_any_number_of_samples(name: str, measured: bool) -> None:
    def loss_fn(x: Tensor) -> Tensor:
        loss = GROWTH[name](x)
        return loss * (1.0 if loss.item() > -1e9 else 2.0) if measured else loss

    plan = gg.plan(loss_fn, torch.randn(64, WIDTH), budget_bytes="1GiB")
    assert plan.estimated != measured
    for samples in (32, 64, 100, 200):
        peak, seen = plan.peak_bytes(samples), tracked(loss_fn, torch.randn(samples, WIDTH))
        if measured and name in ("an eighth", "cdist"):  # up to 32 samples: few steps, and another kernel
            assert peak > 0.99 * seen
        else:
            assert peak == pytest.approx(seen, rel=1e-2)


def tokens_attend_to_all(batch: dict[str, Tensor]) -> Tensor:
    """Quadratic in samples and in length at once."""
    z = MODEL(batch["x"]).flatten(0, 1)
    return ((z @ z.T).softmax(1) @ z).mean()


def test_pairs_of_tokens_of_all_samples_and_lengths() -> None:
    batch = {"x": torch.randn(24, 20, WIDTH), "mask": torch.arange(20)[None] < torch.randint(8, 21, (24, 1))}
    batch["mask"][0] = True
    plan = gg.plan(tokens_attend_to_all, batch, budget_bytes="1GiB", lengths="mask", trim=["x", "mask"])
    for samples, length in itertools.product((3, 10, 24), (9, 13, 20)):
        micro = {key: value[:samples, :length].contiguous() for key, value in batch.items()}
        copied = sum(part.numel() * part.element_size() for part in micro.values())
        assert plan.peak_bytes(samples, length) == pytest.approx(
            copied + tracked(tokens_attend_to_all, micro), rel=1e-3
        )


@pytest.mark.parametrize("share", [0.05, 0.2, 0.6])
def test_the_split_of_a_loss_over_pairs_is_the_coarsest_that_fits(share: float) -> None:
    """Not linear: half of the samples take a quarter of the memory."""
    batch = torch.randn(400, WIDTH)
    stands = 2 * sum(p.numel() * 4 for p in MODEL.parameters())
    room = int(share * tracked(info_nce, batch))
    plan = gg.plan(info_nce, batch, budget_bytes=stands + room)
    sizes = [len(part.indices) for part in plan.parts]
    assert sum(sizes) == 400
    assert tracked(info_nce, batch[: max(sizes)]) <= room
    assert tracked(info_nce, batch[: math.ceil(400 / (len(sizes) - 1))]) > room


STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "padded to 8": lambda x: F.pad(MODEL(x), (0, 0, 0, -len(x) % 8)).exp().sin().mean(),
    "padded to a power of 2": lambda x: (
        F.pad(MODEL(x), (0, 0, 0, (1 << (len(x) - 1).bit_length()) - len(x))).exp().sin().mean()
    ),
    "chunks of 8": lambda x: torch.stack([MODEL(part).exp().sin().sum() for part in x.split(8)]).sum(),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_what_grows_in_steps_is_said_to_be_uncertain_and_fits(name: str, share: float) -> None:
    batch, loss_fn = torch.randn(300, WIDTH), STEPS[name]
    room = int(share * tracked(loss_fn, batch))
    stands = 2 * sum(p.numel() * 4 for p in MODEL.parameters())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            plan = gg.plan(loss_fn, batch, budget_bytes=stands + room)
        except BudgetError:
            return  # what one sample is padded to may take as much
    margin = plan.estimate.margin(room)
    assert margin >= 0.05
    assert [each.category for each in told] == [EstimateWarning] * (margin > 0.05)
    assert "uncertain    " in str(plan)
    assert all(tracked(loss_fn, batch[: len(part.indices)]) <= room for part in plan.parts[:2])


def test_raw_samples_of_unequal_length_are_estimated_at_their_lengths() -> None:
    sentences = [torch.randn(length, WIDTH) for length in (3, 30, 9, 12, 28, 21, 8, 4)]

    def loss_fn(batch: Tensor) -> Tensor:
        return (MODEL(batch).exp() @ MODEL(batch).exp().mT).mean()

    def collate(some: list[Tensor]) -> Tensor:
        return nn.utils.rnn.pad_sequence(some, batch_first=True)

    plan = gg.plan(loss_fn, sentences, budget_bytes="1MiB", lengths=len, collate=collate)
    assert plan.estimate.uncertainty(0) == ""
    for samples, length in ((2, 30), (3, 12), (8, 21)):
        micro = torch.randn(samples, length, WIDTH)
        copied = micro.numel() * micro.element_size()
        assert plan.peak_bytes(samples, length) == pytest.approx(copied + tracked(loss_fn, micro), rel=1e-3)


def test_a_loss_that_needs_more_than_a_few_samples_is_estimated(capfd: pytest.CaptureFixture[str]) -> None:
    def hardest(x: Tensor) -> Tensor:
        return MODEL(x).mean(1).topk(5).values.exp().mean()

    plan = gg.plan(hardest, torch.randn(64, WIDTH), budget_bytes="1MiB")
    assert plan.estimated
    assert capfd.readouterr().err == ""
    assert plan.peak_bytes(50) == pytest.approx(tracked(hardest, torch.randn(50, WIDTH)), rel=1e-3)


class Different(torch.autograd.Function):
    """What fake tensors are told is not what happens: as with a kernel whose fake is wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        copies = 1 if type(x.detach()).__name__ == "FakeTensor" else 6
        kept = [x.exp() for _ in range(copies)]
        ctx.save_for_backward(*kept)
        return sum(kept[1:], kept[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * sum(ctx.saved_tensors)


def test_an_estimate_that_a_real_pass_contradicts_is_measured_instead() -> None:
    def loss_fn(x: Tensor) -> Tensor:
        return Different.apply(MODEL(x)).mean()

    plan = gg.plan(loss_fn, torch.randn(64, WIDTH), budget_bytes="1MiB")
    assert not plan.estimated
    assert plan.reason.startswith("a pass over 3 samples took ")
    assert f"measured     on small micro-batches: {plan.reason}" in str(plan)
    assert "fake tensors cannot" not in str(plan)
    assert plan.unchecked == ""
    assert plan.peak_bytes(64) == pytest.approx(tracked(loss_fn, torch.randn(64, WIDTH)), rel=1e-2)


def test_no_real_pass_is_run_where_it_would_take_long() -> None:
    model, seen = nn.Linear(64, 64), []

    def loss_fn(x: Tensor) -> Tensor:
        seen.append(type(x)) if type(x) is Tensor else None
        return model(x).repeat(1, 1 << 30).square().mean()

    with_little = gg.plan(loss_fn, torch.zeros(8, 64), budget_bytes="4TiB")
    assert with_little.unchecked == "a real pass of 3 samples would take too much memory"
    plan = gg.plan(loss_fn, torch.zeros(8, 64), budget_bytes="900TiB")
    assert plan.unchecked == "a real pass of 3 samples would take too long"
    assert f"unchecked    {plan.unchecked}\n" in f"{plan}\n"
    assert seen == []


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    for model in (MODEL, WIDE):
        model.zero_grad()
