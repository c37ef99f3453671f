"""Padding is trimmed where the data shows that it is padding, or the field is named; anything else is refused.

The truth is the whole batch, untrimmed, in float64.
"""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import OptionError
from tests.messages import raises
from tests.tensors import RTOL

SAMPLES, WIDTH, WORDS = 6, 12, 40
LENGTHS = [3, 12, 5, 7, 2, 12]
PAD = 0


def valid_columns(lengths: list[int] = LENGTHS, *, left: bool = False, width: int = WIDTH) -> Tensor:
    columns, sizes = torch.arange(width), torch.tensor(lengths)[:, None]
    return columns >= width - sizes if left else columns < sizes


def texts(*, left: bool = False, lengths: list[int] = LENGTHS, width: int = WIDTH) -> dict[str, Tensor]:
    """Ids, labels and a mask."""
    torch.manual_seed(0)
    mask = valid_columns(lengths, left=left, width=width)
    ids = torch.where(mask, torch.randint(1, WORDS, mask.shape), PAD)
    return {"ids": ids, "labels": torch.where(mask, ids % 7, -100), "mask": mask}


class Reader(nn.Module):
    """Ignores padding; takes positions from the columns, as many models do, or from the mask."""

    def __init__(self, *, columns: bool = True) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.words, self.places = nn.Embedding(WORDS, 4), nn.Embedding(WIDTH, 4)
        self.image, self.columns = nn.Linear(1, 4), columns
        self.double()

    def forward(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        ids, mask = batch["ids"], batch["mask"]
        places = torch.arange(ids.shape[1]).expand_as(ids) if self.columns else mask.long().cumsum(1) - 1
        h = self.words(ids) * self.places(places.clamp(min=0))
        if "image" in batch:  # of each sample: the mean of all its pixels
            h = h * self.image(batch["image"].double().mean((1, 2))[:, None])[:, None]
        return (h.tanh().sum(2) * mask).square().sum(), mask.sum()


def error(batch: dict[str, Any], *, columns: bool = True, **options: Any) -> float:
    """How far off an update by plan is, from that of the whole batch."""
    model = Reader(columns=columns)
    total, count = model(batch)
    truth = torch.autograd.grad(total / count, list(model.parameters()), allow_unused=True)
    before = [p.detach().clone() for p in model.parameters()]
    plan = gg.plan(model, batch, budget_bytes="11 KB", **{"lengths": "mask", **options})
    split = plan.split(batch)
    assert sorted(index for micro in split for index in micro.indices) == list(range(len(batch["ids"])))
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0))
    accumulator.step(model, batch, plan=plan, reduction="sum")
    moved = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]
    largest = max(float(each.abs().max()) for each in truth if each is not None)
    pairs = zip(moved, truth, strict=True)
    return max(float((a - (0 if b is None else b)).abs().max()) for a, b in pairs) / largest


def lengths_of(batch: dict[str, Any], **options: Any) -> list[int]:
    plan = gg.plan(Reader(), batch, budget_bytes="11 KB", **{"lengths": "mask", **options})
    return [micro.data["ids"].shape[1] for micro in plan.split(batch)]


@settings(max_examples=40)
@given(lengths=st.lists(st.integers(1, WIDTH), min_size=4, max_size=9), wide=st.booleans())
def test_whatever_the_lengths_it_is_exact(lengths: list[int], wide: bool) -> None:
    assert error(texts(lengths=lengths, width=WIDTH if wide else max(lengths))) <= RTOL


def test_images_as_wide_as_the_texts_are_not_cropped() -> None:
    """Cropped to the texts' lengths the mean of the pixels is another."""
    batch: dict[str, Any] = {**texts(), "image": torch.rand(SAMPLES, WIDTH, WIDTH)}
    with raises(OptionError, "a field that may be padded", 'batch["image"] has size 12') as caught:
        error(batch)
    assert 'trim=["ids", "labels", "mask"]' in str(caught.value)
    assert error(batch, trim=["ids", "labels", "mask"]) <= RTOL
    assert error(batch, trim=["ids", "mask"]) <= RTOL


def test_the_law_rejects_an_image_that_is_cropped() -> None:
    batch: dict[str, Any] = {**texts(), "image": torch.rand(SAMPLES, WIDTH, WIDTH)}
    assert error(batch, trim={"ids": 1, "mask": 1, "image": (1, 2)}) > 1e-3


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("position ids", torch.arange(WIDTH).expand(SAMPLES, WIDTH)),
        ("features", torch.ones(SAMPLES, WIDTH, 5) * valid_columns()[..., None]),
        ("a mask of attention", torch.ones(SAMPLES, 1, WIDTH, WIDTH)),
        ("a mask that knows no padding", torch.ones(SAMPLES, WIDTH, dtype=torch.long)),
        ("a causal mask for each", torch.ones(SAMPLES, WIDTH, WIDTH).tril().bool()),
    ],
)
def test_what_does_not_show_its_padding_is_asked_about(name: str, field: Tensor) -> None:
    batch = {**texts(), name: field}
    with raises(OptionError, "a field that may be padded", f'batch["{name}"] has size 12'):
        lengths_of(batch)
    assert lengths_of(batch, trim=()) == [WIDTH] * len(lengths_of(batch, trim=()))


def test_a_field_of_several_such_dimensions_is_trimmed_along_those_that_are_named() -> None:
    batch = {**texts(), "attention": torch.ones(SAMPLES, 1, WIDTH, WIDTH)}
    with raises(OptionError, "trimming one of two dimensions", "[2, 3]", '{"attention": 2}'):
        lengths_of(batch, trim=["ids", "mask", "attention"])
    plan = gg.plan(
        Reader(), batch, budget_bytes="11 KB", lengths="mask", trim={"ids": 1, "mask": 1, "attention": (2, 3)}
    )
    assert {tuple(m.data["attention"].shape[2:]) for m in plan.split(batch)} == {
        (m.length, m.length) for m in plan.split(batch)
    }


# -- the left, and the inverse ---------------------------------------------------------------------


def test_a_mask_of_labels_keeps_the_prompt_before_them() -> None:
    batch = texts()
    batch["labels"][:, :2] = -100
    assert error(batch, lengths=lambda b: b["labels"] != -100) <= RTOL
    batch["labels"][4] = -100  # nothing of this text is learned: it keeps all its columns
    assert error(batch, lengths=lambda b: b["labels"] != -100) <= RTOL


def test_tokens_behind_the_last_label_are_not_cut_off() -> None:
    batch = texts(lengths=[12] * SAMPLES)
    batch["labels"][:, 9:] = -100
    with raises(OptionError, "a field that may be padded", 'batch["ids"] has size 12'):
        error(batch, lengths=lambda b: b["labels"] != -100)


# -- lengths as numbers, and other layouts ---------------------------------------------------------


@pytest.mark.parametrize("lengths", [LENGTHS, torch.tensor(LENGTHS)], ids=["list", "tensor"])
def test_lengths_find_the_only_fields_that_are_as_wide(lengths: Any) -> None:
    batch: dict[str, Any] = {**texts(), "sizes": lengths, "vector": torch.rand(SAMPLES, WIDTH - 1)}
    assert error(batch, lengths="sizes") <= RTOL
    assert min(lengths_of(batch, lengths="sizes")) < WIDTH


def test_time_first_batches_are_trimmed_along_dimension_zero() -> None:
    batch = {name: field.T.contiguous() for name, field in texts().items()}
    model = Reader()

    def loss_fn(batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return model({name: field.T for name, field in batch.items()})

    plan = gg.plan(loss_fn, batch, budget_bytes="11 KB", lengths=lambda b: b["mask"].T, batch_dim=1)
    split = plan.split(batch)
    assert {micro.data["ids"].shape for micro in split} == {(m.length, len(m.indices)) for m in split}
    total, count = loss_fn(batch)
    assert sum(int(loss_fn(micro.data)[1]) for micro in split) == int(count)
    torch.testing.assert_close(sum(loss_fn(micro.data)[0] for micro in split), total, rtol=RTOL, atol=0)


def test_a_later_batch_is_trimmed_as_the_first_was() -> None:
    """Its vectors happen to have as many entries as its texts have columns."""

    def batch(width: int) -> dict[str, Tensor]:
        return {**texts(lengths=[3, width, 4, 2, 5, 1], width=width), "vector": torch.rand(SAMPLES, 9)}

    plan = gg.plan(Reader(), batch(12), budget_bytes="11 KB", lengths="mask")
    assert all(micro.data["vector"].shape[1] == 9 for micro in plan.split(batch(9)))
    with raises(OptionError, "a field that may be padded", 'batch["vector"]'):
        gg.plan(Reader(), batch(9), budget_bytes="11 KB", lengths="mask")
    wrong = batch(10)
    wrong["ids"][:] = 3
    with raises(OptionError, "a field that may be padded", 'batch["ids"] has size 10'):
        plan.split(wrong)
    wrong = {**batch(10), "ids": torch.ones(SAMPLES, 11, dtype=torch.long)}
    with raises(OptionError, "a later field of another width", 'batch["ids"]', "11 columns"):
        plan.split(wrong)
