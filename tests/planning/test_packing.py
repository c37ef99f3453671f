"""The cut is the cheapest there is: compared with the slow search over all of them."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

# private: no split is cheaper than the one found, by brute force
from gradgate.planning._micro_batches import cheapest_split, even_split


def cheapest_cost(costs: list[float], most: list[int], start: float) -> float:
    """Try every last micro-batch of every prefix."""
    best = [0.0]
    for j in range(1, len(costs) + 1):
        fits = min(most[:j])
        best.append(min(best[i] + start + (j - i) * costs[j - 1] for i in range(max(0, j - fits), j)))
    return best[-1]


def cost_of(ends: list[int], costs: list[float], start: float) -> float:
    return sum(start + (end - begin) * costs[end - 1] for begin, end in pairwise([0, *ends]))


def filled(costs: list[float], most: list[int], _: float) -> list[int]:
    """Known to be wrong: put as many together as fit."""
    ends, begin = [], 0
    while begin < len(costs):
        end = begin + 1
        while end < len(costs) and end + 1 - begin <= min(most[: end + 1]):
            end += 1
        ends.append(end)
        begin = end
    return ends


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[float], list[int], float]:
    count = draw(st.integers(1, 12))
    numbers = st.one_of(st.integers(1, 4).map(float), st.floats(0.1, 100))
    costs = sorted(draw(st.lists(numbers, min_size=count, max_size=count)))
    most = sorted(draw(st.lists(st.integers(1, 7), min_size=count, max_size=count)), reverse=True)
    return costs, most, draw(st.sampled_from([0.0, 0.5, 3.0, 50.0]))


@given(problem=problems())
def test_no_cut_is_cheaper_and_every_micro_batch_fits(problem: tuple[list[float], list[int], float]) -> None:
    costs, most, start = problem
    ends = cheapest_split(costs, most, start)
    assert ends == sorted(set(ends))
    assert ends[-1] == len(costs)
    assert all(end - begin <= most[end - 1] for begin, end in pairwise([0, *ends]))
    assert math.isclose(cost_of(ends, costs, start), cheapest_cost(costs, most, start), rel_tol=1e-9)


def test_the_slow_search_rejects_a_cut_that_fills_each_micro_batch() -> None:
    costs, most, start = [1.0, 1.0, 1.0, 9.0], [4] * 4, 2.0
    assert cost_of(filled(costs, most, start), costs, start) > cheapest_cost(costs, most, start)


@pytest.mark.parametrize(
    ("count", "most", "sizes"),
    [(100, 32, [25, 25, 25, 25]), (10, 4, [4, 3, 3]), (5, 9, [5]), (3, 1, [1, 1, 1])],
)
def test_equal_samples_are_cut_evenly(count: int, most: int, sizes: list[int]) -> None:
    assert [end - begin for begin, end in pairwise([0, *even_split(count, most)])] == sizes
