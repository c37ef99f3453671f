"""Law 6. A gate changes no forward value: not a bit of it, whatever the tensor, and not the nest around it."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gradgate.gates import clip_gradient, mask_gradient, reverse_gradient, scale_gradient, stop_gradient
from tests.tensors import DEVICE, bits

Gate = Callable[[Any], Any]

GATES: dict[str, Gate] = {
    "stop": stop_gradient,
    "scale": lambda x: scale_gradient(x, 0.3),
    "scale to nothing": lambda x: scale_gradient(x, 0.0),
    "scale by a tensor": lambda x: scale_gradient(x, torch.tensor(0.3, device=DEVICE)),
    "scale by a schedule": lambda x: scale_gradient(x, lambda: 0.3),
    "reverse": lambda x: reverse_gradient(x, strength=2.0),
    "mask": lambda x: mask_gradient(x, torch.tensor(False, device=DEVICE)),
    "clip to a norm": lambda x: clip_gradient(x, max_norm=0.1),
    "clip to a value": lambda x: clip_gradient(x, max_value=0.1),
}

DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.complex128, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
]  # fmt: skip
SHAPES = [(), (0,), (1,), (3,), (2, 3), (3, 0, 2), (2, 3, 4)]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x,
    "transposed": lambda x: x.mT if x.dim() > 1 else x,
    "every second": lambda x: x[..., ::2] if x.dim() else x,
    "expanded": lambda x: x.expand(2, *x.shape),
    "conjugated": lambda x: x.conj() if x.is_complex() else x,
    "with a graph": lambda x: x if x.is_leaf and not x.requires_grad else x.view_as(x),
}


class Named(NamedTuple):
    x: Any
    y: Any


@dataclass
class Fields:
    x: Any
    y: Any = 0


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Any bits at all: every NaN, both zeros, infinities, subnormal numbers."""
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.sampled_from(SHAPES))
    x = torch.empty(shape, dtype=dtype)
    drawn = draw(st.binary(min_size=x.nbytes, max_size=x.nbytes)) if x.nbytes else b""
    if dtype == torch.bool:
        drawn = bytes(byte % 2 for byte in drawn)
    if drawn:
        x = torch.frombuffer(bytearray(drawn), dtype=dtype).reshape(shape)
    x = x.to(DEVICE)
    if (x.is_floating_point() or x.is_complex()) and draw(st.booleans()):
        x.requires_grad_()
    return draw(st.sampled_from(list(VIEWS.values())))(x)


def nests(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    others = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.text(max_size=3), max_size=2)
    return st.recursive(
        leaves | others,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.tuples(inner, inner)
            | st.dictionaries(st.text(max_size=2), inner, max_size=3)
            | st.builds(Named, inner, inner)
            | st.builds(Fields, inner, inner)
        ),
        max_leaves=6,
    )


def assert_same_forward(gate: Gate, nest: Any) -> None:
    assert_same(gate(nest), nest)


def assert_same(got: Any, was: Any) -> None:
    assert type(got) is type(was), f"a {type(was).__name__} became a {type(got).__name__}"
    if isinstance(was, Tensor):
        assert (got.dtype, got.shape, got.stride()) == (was.dtype, was.shape, was.stride()), "another form"
        assert torch.equal(bits(got), bits(was)), "other bits"
    elif isinstance(was, dict):
        assert list(got) == list(was), "other keys"
        for key, one in was.items():
            assert_same(got[key], one)
    elif isinstance(was, (list, tuple)):
        for one, other in zip(got, was, strict=True):
            assert_same(one, other)
    elif is_dataclass(was):
        for each in fields(was):
            assert_same(getattr(got, each.name), getattr(was, each.name))
    else:
        assert got == was


def takes(name: str, x: Any) -> bool:
    return name != "clip to a value" or not isinstance(x, Tensor) or not x.is_complex()


@pytest.mark.parametrize("name", GATES)
@settings(max_examples=50)
@given(data=st.data())
def test_no_bit_of_any_tensor_changes(name: str, data: st.DataObject) -> None:
    x = data.draw(tensors().filter(lambda x: takes(name, x)))
    assert_same_forward(GATES[name], x)
    with torch.no_grad():
        assert_same_forward(GATES[name], x)


@pytest.mark.parametrize("name", ["stop", "scale", "clip to a norm"])  # all take a nest apart alike
@settings(max_examples=30)
@given(data=st.data())
def test_no_nest_changes(name: str, data: st.DataObject) -> None:
    assert_same_forward(GATES[name], data.draw(nests(tensors().filter(lambda x: takes(name, x)))))


SINGLE, DOUBLE = torch.rand(1000), torch.rand(9, dtype=torch.float64)

WRONG: list[tuple[str, Gate, Any]] = [
    ("other bits", lambda x: x * 0.3 + x.detach() * (1 - 0.3), SINGLE),  # the usual trick
    ("other bits", lambda x: x + (x - x).detach(), torch.tensor([float("inf")])),
    ("other bits", lambda x: x + 0.0, torch.tensor(-0.0)),
    ("other bits", lambda x: x.float().double(), DOUBLE),
    ("other bits", torch.nan_to_num, torch.tensor([float("nan")])),
    ("another form", lambda x: x.contiguous(), torch.rand(2, 3).T),
    ("another form", lambda x: x * 1.0, torch.tensor([1, 2])),
    ("another form", torch.atleast_1d, torch.tensor(1.0)),
    ("a list became a tuple", tuple, [SINGLE]),
    ("a Named became a tuple", lambda nest: tuple(map(stop_gradient, nest)), Named(SINGLE, 1)),
    ("other keys", lambda nest: {key: one for key, one in nest.items() if isinstance(one, Tensor)}, {"n": 1}),
]


@pytest.mark.parametrize(("complaint", "gate", "nest"), WRONG)
def test_the_law_rejects(complaint: str, gate: Gate, nest: Any) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert_same_forward(gate, nest)
    assert_same_forward(stop_gradient, nest)
