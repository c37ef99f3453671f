"""Beside trainers on two real ranks: what the pages say of them."""

import json
from pathlib import Path

import pytest

from tests.ranks.processes import torchrun

SCRIPT = Path(__file__).with_name("on_ranks.py")


def measured(name: str) -> dict[str, float]:
    done = torchrun(SCRIPT, name)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accelerate", "lightning"])
def test_the_update_is_that_of_the_samples_of_all_ranks(name: str) -> None:
    found = measured(name)
    assert found["count"] == 22
    assert found["error"] < 1e-14  # float64, sums of 22 terms


@pytest.mark.slow
def test_accelerate_repeats_samples_unless_told_otherwise() -> None:
    found = measured("accelerate, even")
    assert found["count"] == 24
    assert round(found["error"], 2) == 0.23
