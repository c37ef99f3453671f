"""A gg.Accumulator in Lightning's manual optimization, on two real ranks: what the page says of it."""

import json
from pathlib import Path

import pytest

from tests.ranks.processes import torchrun

SCRIPT = Path(__file__).with_name("on_ranks.py")


@pytest.mark.slow
def test_the_update_is_that_of_the_samples_of_all_ranks() -> None:
    done = torchrun(SCRIPT)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    assert found["count"] == 22
    assert found["error"] < 1e-14  # float64, sums of 22 terms
