"""Cutting nests of tensors along their samples."""

from collections import OrderedDict, UserDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradgate.nests import cut, sample_count
from tests.tensors import arange, tensor


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
def test_a_nest_is_cut_into_nests_of_its_own_kind_that_together_are_the_whole(name: str, parts: int) -> None:
    nest, x = NESTS[name]
    assert sample_count(nest) == 6
    pieces = cut(nest, parts)
    assert {type(piece) for piece in pieces} == {type(nest)}
    assert torch.equal(torch.cat([x(piece) for piece in pieces]), SIX)
    sizes = [sample_count(piece) for piece in pieces if len(x(piece))]
    assert max(sizes) - min(sizes) <= 1


def test_texts_are_cut_as_samples() -> None:
    assert sample_count(["a", "b", "c"]) == 3
    assert cut(["a", "b", "c"], 2) == [["a", "b"], ["c"]]
    assert [piece.texts for piece in cut(Batch(SIX, list("abcdef")), 2)] == [list("abc"), list("def")]
    assert cut(("a", "b"), 2) == [("a",), ("b",)]


def test_what_is_no_sample_goes_along_whole() -> None:
    first, last = cut({"x": SIX, "rate": 0.5, "mask": tensor(1.0), "who": None}, 2)
    assert (first["rate"], last["rate"], first["who"]) == (0.5, 0.5, None)
    assert first["mask"] is last["mask"]


@pytest.mark.parametrize(
    "nest",
    [
        3,
        None,
        "text",
        (SIX, arange(5)),
        {"x": SIX, "texts": ["one"]},
        tensor(1.0),
        (),
        {},
        [],
        ...,
    ],
    ids=repr,
)
def test_what_has_no_common_first_dimension_cannot_be_cut(nest: Any) -> None:
    assert sample_count(nest) is None
    with pytest.raises(ValueError, match="without a common first dimension"):
        cut(nest, 2)


def test_a_tuple_of_numbers_is_no_list_of_samples() -> None:
    batch = {"x": arange(2), "betas": (0.9, 0.99)}
    assert sample_count(batch) == 2
    assert [piece["betas"] for piece in cut(batch, 2)] == [(0.9, 0.99)] * 2


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
    first, last = cut(batch, 2)
    assert (first.size, last.size) == (3, 3)
    assert torch.equal(torch.cat([first.mask, last.mask]), SIX > 3)


def test_a_mapping_that_refuses_update_is_rebuilt() -> None:
    class Output(OrderedDict[str, Tensor]):
        """Some libraries' outputs of a model."""

        def update(self, *_: Any) -> None:
            raise TypeError("this is no way to change it")

    output = Output()
    output["x"] = SIX
    first, last = cut(output, 2)
    assert type(first) is Output
    assert torch.equal(torch.cat([first["x"], last["x"]]), SIX)
