"""Law 1, cut, over data layouts: a batch of any shape is split exactly, or refused by the name of a field.

Each field of a sample is a factor of its loss, so a field that is not split with the others gives another
gradient. ``loss_fn`` pairs fields by ``zip``, as ordinary code does: one that is too long is silently read from its
beginning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import BudgetError, OptionError

# private: any samples of a batch are taken in any order; a plan takes those that fit together
from gradgate.planning._samples import BatchOptions, Samples
from gradgate.pytree import mapped_tensors

Values = list[float]


class Kind(NamedTuple):
    """How a field holds one number for each sample.

    ``make(values)`` makes the field, ``read(field)`` returns the numbers. ``regular``: it may not be refused.
    """

    make: Callable[[Values], Any]
    read: Callable[[Any], Values]
    regular: bool = True


def column(values: Values) -> Tensor:
    return torch.tensor(values, dtype=torch.double)


def matrix(values: Values) -> Tensor:
    return column(values)[:, None].expand(-1, 3).clone()


def ragged(values: Values) -> list[Tensor]:
    return [torch.full((2 + place % 3,), value, dtype=torch.double) for place, value in enumerate(values)]


FIRST_ENTRY: Callable[[Any], Values] = lambda field: [float(each[0]) for each in field]  # noqa: E731

SPLIT = {
    "tensor": Kind(column, lambda field: field.tolist()),
    "matrix": Kind(matrix, FIRST_ENTRY),
    "array": Kind(lambda values: numpy.array(values), lambda field: field.tolist()),
    "numbers": Kind(list, list),
    "tuple of numbers": Kind(tuple, list),
    "texts": Kind(
        lambda values: [repr(value) for value in values], lambda field: [float(each) for each in field]
    ),
    "dicts": Kind(
        lambda values: [{"value": value, "note": "x"} for value in values],
        lambda field: [each["value"] for each in field],
    ),
    "nested": Kind(
        lambda values: {"inner": {"x": column(values)}}, lambda field: field["inner"]["x"].tolist()
    ),
    "pair": Kind(lambda values: (column(values), list(values)), lambda field: field[0].tolist()),
    # Lists of tensors and of lists may coincide with the batch's size: split exactly, or refused.
    "ragged": Kind(ragged, FIRST_ENTRY, regular=False),
    "lists": Kind(lambda values: [[value] * 2 for value in values], FIRST_ENTRY, regular=False),
    "views": Kind(lambda values: [matrix(values)] * 3, lambda field: FIRST_ENTRY(field[1]), regular=False),
}
SHARED = {
    "number": 2.0,
    "text": "a text that all samples share",
    "none": None,
    "zero-dimensional": torch.tensor(2.0),
}
# Of a batch of at most 6 samples no part: they are shared, or a mistake, and nothing says which.
ODD = {
    "short list": [1.0] * 7,
    "table": torch.ones(9, 2),
    "object": object(),
    "set": {1, 2},
    "texts too many": ["a"] * 8,
}


class Problem(NamedTuple):
    batch: Any
    fields: list[tuple[Any, Kind]]
    factors: list[float]
    regular: bool
    odd: list[str]


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    samples = draw(st.integers(1, 6))
    chosen = draw(st.lists(st.sampled_from(sorted(SPLIT)), min_size=1, max_size=4))
    numbers = st.lists(st.floats(0.5, 2.0), min_size=samples, max_size=samples)
    values = [draw(numbers) for _ in chosen]
    shared = draw(st.lists(st.sampled_from(sorted(SHARED)), max_size=2, unique=True))
    odd = draw(st.lists(st.sampled_from(sorted(ODD)), max_size=1))
    fields = [(f"{place} {name}", SPLIT[name]) for place, name in enumerate(chosen)]
    batch = {name: kind.make(each) for (name, kind), each in zip(fields, values, strict=True)}
    batch |= {name: SHARED[name] for name in shared} | {name: ODD[name] for name in odd}
    order = draw(st.permutations(sorted(batch)))
    factors = [math.prod(each[sample] for each in values) for sample in range(samples)]
    return Problem(
        {name: batch[name] for name in order}, fields, factors, all(k.regular for _, k in fields), odd
    )


def factors_of(batch: dict[str, Any], fields: list[tuple[Any, Kind]]) -> list[float]:
    columns = [kind.read(batch[name]) for name, kind in fields]
    return [math.prod(row) for row in zip(*columns, strict=False)]


def error_of(problem: Problem, most: int, step: Callable[..., Any]) -> float:
    """Make one update in micro-batches of at most ``most`` samples; return how far off its gradient is."""
    weight = nn.Parameter(torch.zeros((), dtype=torch.double))
    model = nn.Module()
    model.weight = weight

    def loss_fn(batch: dict[str, Any]) -> tuple[Tensor, int]:
        factors = factors_of(batch, problem.fields)
        if len(factors) > most:
            raise torch.OutOfMemoryError("as if the device were full")
        return weight * (sum(factors) / len(factors)), len(factors)

    step(gg.Accumulator(torch.optim.SGD([weight], lr=1.0), model=model), loss_fn, problem.batch)
    truth = sum(problem.factors) / len(problem.factors)
    return abs(-weight.item() - truth) / truth


def by_gradgate(accumulator: gg.Accumulator, loss_fn: Callable[[Any], Any], batch: Any) -> None:
    accumulator.step(loss_fn, batch)


def only_tensors(accumulator: gg.Accumulator, loss_fn: Callable[[Any], Any], batch: Any) -> None:
    """Known to be wrong: what is no tensor goes along whole."""
    samples = next(len(field) for field in batch.values() if isinstance(field, Tensor) and field.dim())
    accumulator.step_window(
        loss_fn, [mapped_tensors(batch, lambda x, i=i: x[i : i + 1]) for i in range(samples)]
    )


@settings(max_examples=60)
@given(problem=problems(), most=st.integers(1, 6))
def test_a_batch_of_any_layout_is_split_exactly_or_refused_by_a_fields_name(
    problem: Problem, most: int
) -> None:
    split, error, refusal = len(problem.factors) > most, 0.0, ""
    try:
        error = error_of(problem, most, by_gradgate)
    except BudgetError as refused:
        refusal = str(refused)
    assert error <= 1e-14 * len(problem.factors) * len(problem.fields)  # sums and products in float64
    if refusal:
        assert split
        assert problem.odd or not problem.regular or "cannot tell whether" in refusal
        assert any(f'batch["{name}"]' in refusal for name in problem.batch)
    else:
        assert not (split and problem.odd)


def test_the_law_rejects_splitting_tensors_alone() -> None:
    values = [[1.0, 2.0, 4.0], [3.0, 1.0, 2.0]]
    fields = [("x", SPLIT["tensor"]), ("y", SPLIT["numbers"])]
    batch = {name: kind.make(each) for (name, kind), each in zip(fields, values, strict=True)}
    problem = Problem(batch, fields, [3.0, 2.0, 8.0], regular=True, odd=[])
    assert error_of(problem, 1, only_tensors) > 1e-2
    assert error_of(problem, 1, by_gradgate) <= 1e-14


@settings(max_examples=60)
@given(problem=problems(), data=st.data())
def test_any_samples_of_a_batch_are_taken_as_they_are(problem: Problem, data: st.DataObject) -> None:
    """As a plan takes them: in any order."""
    count, refusal = len(problem.factors), ""
    try:
        samples = Samples(problem.batch, BatchOptions())
    except OptionError as error:
        refusal = str(error)
    if refusal:
        assert problem.odd or not problem.regular or "cannot tell whether" in refusal
        return
    assert samples.count == count
    indices = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True))
    taken = samples.take(indices)
    assert factors_of(taken, problem.fields) == pytest.approx([problem.factors[each] for each in indices])
