"""Assertions about where a loss flows."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradgate.errors import FlowError
from gradgate.gates import expect_flow


class Gan:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.G, self.D = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)), nn.Linear(2, 1)

    def fake(self) -> Tensor:
        return self.D(self.G(torch.ones(4, 2))).mean()  # type: ignore[no-any-return]

    def cut(self) -> Tensor:
        return self.D(self.G(torch.ones(4, 2)).detach()).mean()  # type: ignore[no-any-return]


def line_of(function: Callable[..., Tensor]) -> str:
    """Return where the line below a function's first is."""
    return f"test_expect_flow.py:{function.__code__.co_firstlineno + 1}"


def test_what_is_as_it_should_be_passes_in_silence() -> None:
    gan = Gan()
    expect_flow(gan.cut(), into=[gan.D], not_into=[gan.G])
    expect_flow(gan.cut, into=gan.D, not_into=gan.G)
    expect_flow(gan.fake(), into=[gan.D.weight, gan.G])
    # No backward pass runs.
    assert [parameter.grad for parameter in (*gan.G.parameters(), *gan.D.parameters())] == [None] * 6
    with pytest.raises(FlowError):  # so that the silence above can be broken
        expect_flow(gan.fake(), into=[gan.D], not_into=[gan.G])


def test_a_leak_names_the_first_path() -> None:
    gan = Gan()
    path = (
        "loss <- MeanBackward0 <- AddmmBackward0 <- AddmmBackward0 <- TanhBackward0 <- AddmmBackward0 <- "
        "TBackward0 <- Sequential.0.weight"
    )
    with pytest.raises(FlowError, match=f"reaches 4 of 4 .* first Sequential.0.weight: {path}\\."):
        expect_flow(gan.fake(), into=[gan.D], not_into=[gan.G])


def test_a_function_names_the_lines_of_the_path() -> None:
    gan = Gan()
    with pytest.raises(
        FlowError, match=rf"loss <- MeanBackward0 \({line_of(Gan.fake)}\) <- AddmmBackward0 \(test_exp"
    ):
        expect_flow(gan.fake, not_into=gan.G)


def test_what_is_missing_names_what_stops_it() -> None:
    gan = Gan()
    missing = "does not reach 4 of 4 parameters that it should, first Sequential.0.weight: detach at "
    with pytest.raises(FlowError, match=f"{missing}{line_of(Gan.cut)}"):
        expect_flow(gan.cut, into=[gan.G])


def test_a_long_path_is_shortened_in_its_middle() -> None:
    deep = nn.Sequential(*[nn.Linear(2, 2) for _ in range(20)])
    with pytest.raises(FlowError) as caught:
        expect_flow(deep(torch.ones(1, 2)).sum(), not_into=deep[0])
    assert re.search(r"loss <- SumBackward0 <- .* <- 16 more <- .* <- Linear.weight\.", str(caught.value))
    assert str(caught.value).count("<-") == 8
