"""Samples dealt to ranks: everyone once, equal numbers, nearly equal work."""

from hypothesis import given
from hypothesis import strategies as st

# private: every sample is dealt once, in equal numbers and nearly equal work
from gradgate.planning._micro_batches import deal

WORK = st.lists(st.floats(0, 1000), max_size=60)


@given(work=WORK, ranks=st.integers(1, 7))
def test_every_sample_is_dealt_once_in_equal_numbers_and_nearly_equal_work(
    work: list[float], ranks: int
) -> None:
    hands = deal(work, ranks)
    assert sorted(index for hand in hands for index in hand) == list(range(len(work)))
    sizes = [len(hand) for hand in hands]
    assert max(sizes) - min(sizes) <= 1
    loads = [sum(work[index] for index in hand) for hand in hands]
    assert max(loads) - min(loads) <= max(work, default=0) + 1e-6


def test_the_law_rejects_dealing_in_order() -> None:
    work = [float(length) for length in range(40)]
    halves = [sum(work[:20]), sum(work[20:])]
    assert halves[1] - halves[0] > max(work)
    one, other = (sum(work[index] for index in hand) for hand in deal(work, 2))
    assert abs(one - other) <= 1
