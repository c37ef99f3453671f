"""A sum and a count."""

from hypothesis import given
from hypothesis import strategies as st

import gradgate as gg
from gradgate.errors import CountError
from tests.messages import raises

tallies = st.builds(gg.Tally, st.integers(-1000, 1000).map(float), st.integers(0, 1000))


@given(st.lists(tallies, max_size=8), st.randoms(use_true_random=False))
def test_tallies_add_in_any_order_and_the_mean_is_taken_once(parts: list, random: object) -> None:
    whole = sum(parts, gg.Tally())
    random.shuffle(parts)  # type: ignore[attr-defined]
    assert sum(parts, gg.Tally()) == whole
    if whole.count:
        assert whole.mean == sum(part.total for part in parts) / sum(part.count for part in parts)


def test_it_is_not_the_mean_of_means() -> None:
    assert (gg.Tally(6.0, 3) + gg.Tally(10.0, 1)).mean == 4.0 != (6.0 / 3 + 10.0) / 2


def test_no_items_have_no_mean() -> None:
    with raises(CountError, "the mean of nothing"):
        _ = gg.Tally(1.0, 0).mean
