"""Law. No call moves a random generator of the user's, the first in a process included."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gradgate import torch_compat
from gradgate.torch_compat import Private
from tests.laws.first_calls import CALLS, WRONG, public_names

ROOT = Path(__file__).parents[2]
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="each call has a process of its own")
PRIVATE = {name: value for name, value in vars(torch_compat).items() if isinstance(value, Private)}


@functools.cache
def moved_by_first_calls() -> dict[str, list[str]]:
    # A real interpreter: in that of `tests.interpreter`, parts of gradgate have run.
    command = [sys.executable, "-m", "tests.laws.first_calls"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert not done.returncode, done.stderr
    result: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return result


def is_called(value: Any) -> bool:
    return callable(value) and not (isinstance(value, type) and issubclass(value, Exception))


def test_every_public_name_has_a_call() -> None:
    assert {name for name, value in public_names().items() if is_called(value)} <= CALLS.keys()


@needs_fork
@pytest.mark.parametrize("name", CALLS)
def test_no_first_call_moves_a_generator(name: str) -> None:
    assert moved_by_first_calls()[name] == []


@needs_fork
@pytest.mark.parametrize("name", WRONG)
def test_a_generator_that_moves_is_noticed(name: str) -> None:
    assert moved_by_first_calls()[name] == [name]


@pytest.mark.parametrize("name", PRIVATE)
def test_no_probe_of_a_private_name_draws(name: str) -> None:
    before = torch.get_rng_state()
    entry = PRIVATE[name]
    entry.works(entry.find())
    assert torch.equal(torch.get_rng_state(), before)
