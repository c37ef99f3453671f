"""Arithmetic on many gradients at once."""

import math

import pytest
import torch
from torch import nn

# private: the arithmetic on lists of gradients: dense and sparse, of several dtypes, without overflow
from gradgate.accumulation._gradients import add, dense_values, multiply, total_norm
from tests.tensors import ones, tensor, zeros


def with_gradient(gradient: torch.Tensor | None) -> nn.Parameter:
    parameter = nn.Parameter(zeros(3))
    parameter.grad = gradient
    return parameter


def sparse(index: list[int], values: list[float]) -> torch.Tensor:
    return torch.sparse_coo_tensor([index], tensor(values), (3,), check_invariants=True)


def test_a_sparse_gradient_is_coalesced_and_multiplied_in_place() -> None:
    parameter = with_gradient(sparse([0, 2, 0], [1.0, 2.0, 3.0]))
    multiply(dense_values([parameter, with_gradient(None)]), 0.5)
    assert parameter.grad.to_dense().tolist() == [2.0, 0.0, 1.0]


@pytest.mark.parametrize("factor", [1, 1.0, 0.5, 0.0, tensor(0.5)], ids=str)
def test_nothing_is_multiplied_without_complaint(factor: float | torch.Tensor) -> None:
    nothing: list[torch.Tensor] = []
    multiply(nothing, factor)
    assert nothing == []


def test_values_of_several_types_are_multiplied_at_once() -> None:
    values = [torch.ones(2), torch.ones(2).bfloat16(), torch.ones(2).double()]
    multiply(values, 0.5)
    multiply(values, torch.tensor(0.5))
    assert [value.tolist() for value in values] == [[0.25, 0.25]] * 3
    assert [value.dtype for value in values] == [torch.float32, torch.bfloat16, torch.float64]


@pytest.mark.parametrize("here", ["none", "dense", "sparse"])
@pytest.mark.parametrize("there", ["none", "dense", "sparse"])
def test_dense_and_sparse_gradients_add(here: str, there: str) -> None:
    kinds = {"none": lambda: None, "dense": lambda: ones(3), "sparse": lambda: sparse([0, 1], [1.0, 2.0])}
    values = {"none": [0.0] * 3, "dense": [1.0] * 3, "sparse": [1.0, 2.0, 0.0]}
    parameter, other = with_gradient(kinds[here]()), kinds[there]()
    add([parameter], [other], 0.5)
    found = [0.0] * 3 if parameter.grad is None else parameter.grad.to_dense().tolist()
    assert found == [a + b / 2 for a, b in zip(values[here], values[there], strict=True)]
    assert other is None or other.to_dense().tolist() == values[there]  # only read


def test_the_norm_is_of_all_gradients_as_one_vector() -> None:
    values = [tensor([3.0, 0.0]), zeros(0), tensor([[4.0]]), tensor([12.0]).float()]
    assert float(total_norm(values)) == pytest.approx(13.0)


def test_the_norm_of_16_bit_gradients_is_taken_in_32() -> None:
    values = [torch.full((100,), 300.0).half(), torch.ones(1)]
    assert float(total_norm(values)) == pytest.approx(3000.0)


@pytest.mark.parametrize(
    ("value", "number"),
    [(torch.tensor(300.0).half(), 50_000), (torch.tensor(1.0).bfloat16(), 3)],
    ids=["beyond float16", "between two numbers of bfloat16"],
)
def test_the_norm_of_16_bit_gradients_is_no_16_bit_number(value: torch.Tensor, number: int) -> None:
    norm = float(value) * math.sqrt(number)
    assert float(total_norm([value.repeat(number)])) == pytest.approx(norm, rel=(number + 1) * 2**-24)


def test_the_norm_of_a_nan_is_nan() -> None:
    assert math.isnan(float(total_norm([torch.tensor([math.nan, 1.0])])))
