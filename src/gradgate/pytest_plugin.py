"""The fixture ``watch_gradients``: a test that asks for it fails where its training loop is wrong."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradgate.session import Watching

_watchings: pytest.StashKey[tuple[Any, Any]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "watch_gradients(select=(), ignore=(), raise_on='warning'): options of the fixture watch_gradients",
    )


@pytest.fixture
def watch_gradients(request: pytest.FixtureRequest) -> Iterator[Watching]:
    """Watch the test's training loop; fail the test on warnings and errors.

    The value is what ``gradgate.watch()`` returns. Options stand in a marker:
    ``@pytest.mark.watch_gradients(ignore="GG103", raise_on="error")``.
    """
    from gradgate.session import watch

    marker = request.node.get_closest_marker("watch_gradients")
    options = dict(marker.kwargs) if marker is not None else {}
    raise_on = options.pop("raise_on", "warning")
    watching = watch(**options)
    request.node.stash[_watchings] = (watching, raise_on)
    with watching:
        yield watching


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Judge when the test has returned, and before it counts as passed."""
    result = yield
    watched = pyfuncitem.stash.get(_watchings, None)
    if watched is not None:
        _judge(*watched)
    return result


def _judge(watching: Watching, raise_on: Any) -> None:
    __tracebackhide__ = True
    from gradgate.errors import FindingError
    from gradgate.session import raise_for

    report = watching.stop()
    try:
        raise_for(report, raise_on)
    except FindingError as error:
        pytest.fail(str(error), pytrace=False)
