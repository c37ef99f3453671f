"""Where a batch holds its samples: split exactly, or refused by the name of the field."""

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradgate.batch_layout import check_batch, layout_of, looks_like_window
from gradgate.errors import OptionError
from tests.messages import raises
from tests.tensors import arange, tensor


def sample_count(batch: Any) -> int:
    return layout_of(batch).samples


def split(batch: Any, parts: int) -> list[Any]:
    return [part for part, _ in layout_of(batch).split(batch, parts)]


class Pair(NamedTuple):
    x: Tensor
    y: Tensor


@dataclass
class Batch:
    x: Tensor
    texts: list[str]
    scale: float = 1.0


SIX = arange(6)

NESTS: dict[str, tuple[Any, Any]] = {
    "tensor": (SIX, lambda nest: nest),
    "tuple": ((SIX, -SIX), lambda nest: nest[0]),
    "list of tensors": ([SIX, -SIX], lambda nest: nest[0]),
    "dict": ({"x": SIX, "y": -SIX, "scale": 2.0, "name": "batch"}, lambda nest: nest["x"]),
    "ordered dict": (OrderedDict(x=SIX), lambda nest: nest["x"]),
    "default dict": (defaultdict(list, x=SIX), lambda nest: nest["x"]),
    "user dict": (UserDict(x=SIX), lambda nest: nest["x"]),
    "namedtuple": (Pair(SIX, -SIX), lambda nest: nest.x),
    "dataclass": (Batch(SIX, list("abcdef"), 3.0), lambda nest: nest.x),
    "nested": ({"in": (SIX, [-SIX]), "out": Pair(SIX, SIX)}, lambda nest: nest["in"][0]),
    "tensor and scalar": ((SIX, tensor(2.0), None), lambda nest: nest[0]),
    "tensor and texts": ((SIX, list("abcdef")), lambda nest: nest[0]),
}


@pytest.mark.parametrize("name", NESTS)
@settings(max_examples=8)
@given(parts=st.integers(1, 8))
def test_a_batch_is_split_into_batches_of_its_own_kind_that_together_are_the_whole(
    name: str, parts: int
) -> None:
    nest, x = NESTS[name]
    assert sample_count(nest) == 6
    pieces = split(nest, parts)
    assert {type(piece) for piece in pieces} == {type(nest)}
    assert torch.equal(torch.cat([x(piece) for piece in pieces]), SIX)
    sizes = [len(x(piece)) for piece in pieces if len(x(piece))]
    assert max(sizes) - min(sizes) <= 1


EIGHT = arange(8)
SQUARE = torch.rand(8, 8)
CLASSES = torch.tensor([0, 7, 3, 3, 1, 2, 5, 4])


@pytest.mark.parametrize(
    ("batch", "shared"),
    [
        ({"x": torch.rand(8, 3), "y": SQUARE, "pos_weight": EIGHT}, ['batch["pos_weight"]']),
        ((torch.rand(8, 8, 3), SQUARE), ["batch[1]"]),
        ({"ids": torch.ones(8, 8, dtype=torch.long), "causal": SQUARE > 0.5}, ['batch["causal"]']),
        ({"x": torch.rand(8, 8, 3), "y": CLASSES, "positions": torch.rand(8, 3)}, ['batch["positions"]']),
        (
            {"ids": torch.ones(8, 8).long(), "y": CLASSES, "position_ids": torch.arange(8)},
            ['batch["position_ids"]'],
        ),
        ({"x": torch.rand(8, 3), "y": CLASSES, "weight": EIGHT}, ['batch["weight"]']),
        ((SQUARE, SQUARE), ["batch[0]", "batch[1]"]),
        ({"in": (torch.rand(8, 8, 3), SQUARE)}, ['batch["in"][1]']),
        ({"x": numpy.zeros((8, 8, 3)), "mask": numpy.zeros((8, 8))}, ['batch["mask"]']),
    ],
)
def test_what_all_samples_may_share_is_asked_for(batch: Any, shared: list[str]) -> None:
    with pytest.raises(OptionError, match="data that all samples share") as caught:
        layout_of(batch)
    assert f"cannot tell whether {' and '.join(shared)} hold" in str(caught.value)


@pytest.mark.parametrize(
    "batch",
    [
        (torch.rand(8, 3), EIGHT),
        (torch.rand(8, 8), EIGHT),
        (torch.rand(8, 3, 8, 8), CLASSES),
        (torch.rand(8, 3, 8, 8), CLASSES, CLASSES.flip(0), 0.3),
        (torch.rand(8, 3), torch.rand(8, 3), EIGHT),
        (torch.rand(8, 3), torch.rand(8, 8)),
        {"image": torch.rand(8, 3, 8, 8), "label": CLASSES, "name": list("abcdefgh")},
        {key: torch.ones(8, 5).long() for key in ("input_ids", "attention_mask", "labels")},
        {key: torch.ones(8, 8).long() for key in ("input_ids", "attention_mask", "labels")},
        {"ids": torch.ones(8, 5).long(), "mask": torch.ones(8, 5) > 0, "score": EIGHT},
        {"x": torch.rand(1, 1), "y": torch.rand(1, 1), "weight": torch.rand(1)},
    ],
)
def test_an_ordinary_batch_is_not_asked_about(batch: Any) -> None:
    assert sample_count(batch) in (1, 8)


@pytest.mark.parametrize("answer", [{"weight": 0}, {"weight": None}, 0])
def test_an_answer_settles_what_is_shared(answer: Any) -> None:
    batch = {"x": torch.rand(8, 3), "y": CLASSES, "weight": EIGHT}
    part = layout_of(batch, answer).take(batch, [1])
    assert len(part["weight"]) == (8 if answer == {"weight": None} else 1)


def test_a_dict_of_samples_is_refused_unless_its_entries_are_fields() -> None:
    samples = {7: torch.ones(3), 9: torch.ones(3)}
    with raises(OptionError, "a dict of samples by number"):
        layout_of(samples)
    assert layout_of(samples, 0).samples == 3
    assert layout_of({0: SIX, 1: torch.ones(6, 2)}).samples == 6
    assert layout_of({"x": SIX, "levels": {0: SIX, 1: SIX}}).samples == 6


@pytest.mark.parametrize(
    ("batch", "said", "taken"),
    [
        ({"x": SIX, "table": arange(7)}, {"table": None}, lambda b: len(b["table"]) == 7),
        (
            {"x": SIX, "t": arange(12).view(2, 6)},
            {"t": 1},
            lambda b: b["t"].tolist() == [[1.0, 2.0], [7.0, 8.0]],
        ),
        ({"m": {"x": SIX, "n": [7]}}, {("m", "n"): None}, lambda b: b["m"]["n"] == [7]),
        ((arange(12).view(2, 6), arange(6).view(1, 6)), 1, lambda b: b[1].tolist() == [[1.0, 2.0]]),
        ([arange(4)] * 6, "list", lambda b: len(b) == 2 and len(b[0]) == 4),
        ([SIX, SIX, SIX], 0, lambda b: len(b) == 3 and len(b[0]) == 2),
        ({"x": SIX, "v": [arange(6)] * 6}, {"v": 0}, lambda b: len(b["v"]) == 6 and len(b["v"][0]) == 2),
        ({"x": SIX, "v": [arange(6)] * 6}, {"v": "list"}, lambda b: len(b["v"]) == 2 and len(b["v"][0]) == 6),
        ({"x": SIX, "g": object()}, {"g": None}, lambda b: type(b["g"]) is object),
    ],
)
def test_what_is_said_settles_it(batch: Any, said: Any, taken: Any) -> None:
    layout = layout_of(batch, said)
    assert layout.samples == 6
    assert taken(layout.take(batch, slice(1, 3)))
    assert taken(layout.take(batch, [1, 2]))


def test_a_later_batch_is_read_as_the_first_one_was() -> None:
    """Two samples beside a list of two tensors of two could be read in two ways."""
    first = {"x": SIX, "views": [SIX, SIX]}
    other = {"x": SIX, "boxes": [arange(2)] * 6}
    small = {"x": arange(2), "views": [arange(2), arange(2)]}
    assert layout_of(small, like=layout_of(first)).take(small, [1])["views"] == [tensor([1.0])] * 2
    small = {"x": arange(2), "boxes": [arange(2), arange(2)]}
    (box,) = layout_of(small, like=layout_of(other)).take(small, [1])["boxes"]
    assert len(box) == 2


def test_what_a_tokenizer_knows_of_each_sample_goes_with_it() -> None:
    class Encoded(UserDict[str, Tensor]):
        """transformers' BatchEncoding has such a list, for word_ids(sample)."""

        _encodings: list[str]

    batch = Encoded(input_ids=SIX)
    batch._encodings = list("abcdef")
    assert layout_of(batch).take(batch, [4, 2])._encodings == ["e", "c"]
    assert batch._encodings == list("abcdef")


@pytest.mark.parametrize(
    "batch",
    [
        (SIX, SIX),
        [SIX],
        [SIX, torch.zeros(6, 2)],
        (SIX, {"x": SIX}),
        ({"x": SIX}, {"y": SIX}),
        ((SIX, SIX.long()), (SIX.long(), SIX)),
        ["a", "b"],
        [torch.zeros(6, 2), torch.zeros(6, 2)],
        ([torch.zeros(2, 3)], [{"boxes": SIX}]),
        {"x": SIX},
        3.0,
    ],
    ids=repr,
)
def test_one_batch_is_not_refused(batch: Any) -> None:
    check_batch(batch, "step", "step_window")
    assert not looks_like_window(batch)


def test_what_a_dataclass_derives_is_derived_anew_and_the_rest_goes_along() -> None:
    @dataclass
    class Derived:
        x: Tensor
        size: int = field(init=False)
        mask: Tensor = field(init=False)

        def __post_init__(self) -> None:
            self.size, self.mask = len(self.x), self.x > 0

    batch = Derived(SIX)
    batch.mask = SIX > 3
    first, last = split(batch, 2)
    assert (first.size, last.size) == (3, 3)
    assert torch.equal(torch.cat([first.mask, last.mask]), SIX > 3)


def test_a_mapping_that_refuses_update_is_rebuilt() -> None:
    class Output(OrderedDict[str, Tensor]):
        """Some libraries' outputs of a model."""

        def update(self, *_: Any) -> None:
            raise TypeError("this is no way to change it")

    output = Output()
    output["x"] = SIX
    first, last = split(output, 2)
    assert type(first) is Output
    assert torch.equal(torch.cat([first["x"], last["x"]]), SIX)
