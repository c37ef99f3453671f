"""Real trainers on two real ranks: exact accumulation, and a gg.Accumulator in Lightning's manual optimization."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.exact_cases import CASES, RIGHT, WRONG
from tests.ranks.processes import torchrun

SCRIPT = Path(__file__).with_name("on_ranks.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What one run of all of them has found: the trainers take seconds to import."""
    done = torchrun(SCRIPT, imported="accelerate lightning.pytorch transformers.trainer")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", [*CASES, *RIGHT])
def test_a_window_that_ranks_share_has_the_gradient_of_all_of_its_items(
    name: str, found: dict[str, Any]
) -> None:
    _, within = {**CASES, **RIGHT}[name]
    exact, as_it_comes = found["errors"][name]
    assert max(exact) < within
    assert name in RIGHT or max(as_it_comes) > WRONG


def test_in_manual_optimization_the_update_is_that_of_the_samples_of_all_ranks(found: dict[str, Any]) -> None:
    assert found["manual count"] == 22
    assert found["manual error"] < 1e-14  # float64, sums of 22 terms
