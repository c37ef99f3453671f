"""What tests of the watcher share."""

from collections.abc import Iterator

import pytest

from gradgate.checker.recording import Watcher


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    """A watcher at work, whose own failures fail the test."""
    watcher = Watcher(strict=True)
    watcher.start()
    yield watcher
    watcher.stop()
