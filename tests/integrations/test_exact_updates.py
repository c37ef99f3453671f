"""Each update in real trainers is that of its whole window: exact with one line, and wrong without it."""

import pytest

from tests.integrations.exact_cases import CASES, RIGHT, WRONG

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(isinstance.treespec|LeafSpec).*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging"),
]


@pytest.mark.parametrize("name", [*CASES, *RIGHT])
def test_a_window_has_the_gradient_of_all_of_its_items(name: str) -> None:
    run, within = {**CASES, **RIGHT}[name]
    assert max(run(True)) < within


@pytest.mark.parametrize("name", CASES)
def test_without_the_line_it_has_not(name: str) -> None:
    run, _ = CASES[name]
    assert max(run(False)) > WRONG
