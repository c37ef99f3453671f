"""Each update in real trainers is that of its whole window: exact with one line, and wrong without it."""

import json
from pathlib import Path

import pytest

from tests.integrations import exact_cases
from tests.integrations.exact_cases import CASES, RIGHT
from tests.ranks.processes import torchrun

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(isinstance.treespec|LeafSpec).*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging"),
]
WRONG = 0.1  # the smallest error, relative to the largest gradient, that counts as wrong


@pytest.mark.parametrize("name", [*CASES, *RIGHT])
def test_a_window_has_the_gradient_of_all_of_its_items(name: str) -> None:
    run, within = {**CASES, **RIGHT}[name]
    assert max(run(True)) < within


@pytest.mark.parametrize("name", CASES)
def test_without_the_line_it_has_not(name: str) -> None:
    run, _ = CASES[name]
    assert max(run(False)) > WRONG


@pytest.mark.slow
def test_on_two_ranks_that_share_each_window() -> None:
    done = torchrun(Path(exact_cases.__file__))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for name, (_, within) in {**CASES, **RIGHT}.items():
        exact, as_it_comes = found[name]
        assert max(exact) < within, name
        assert name in RIGHT or max(as_it_comes) > WRONG, name
