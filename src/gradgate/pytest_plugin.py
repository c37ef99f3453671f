"""The fixture ``watch_gradients``: a test that asks for it fails where its training loop is wrong."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradgate.session import Watching

_FIXTURE = "watch_gradients"
_unjudged: pytest.StashKey[tuple[Any, Any]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line(
        "markers",
        "watch_gradients(select=(), ignore=(), raise_on='warning'): watch the test's training loop",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let the marker ask for the fixture by itself."""
    names = getattr(item, "fixturenames", None)
    if names is not None and item.get_closest_marker(_FIXTURE) is not None and _FIXTURE not in names:
        names.append(_FIXTURE)


@pytest.fixture
def watch_gradients(request: pytest.FixtureRequest) -> Iterator[Watching]:
    """Watch the test's training loop; fail the test on warnings and errors.

    The value is what ``gradgate.watch()`` returns. Options stand in a marker, which asks for the fixture, too:
    ``@pytest.mark.watch_gradients(ignore="GG103", raise_on="error")``.
    """
    __tracebackhide__ = True
    from gradgate.errors import OptionError
    from gradgate.session import watch

    marker = request.node.get_closest_marker(_FIXTURE)
    options = {"raise_on": "warning", **(marker.kwargs if marker is not None else {})}
    refused = ""
    if marker is not None and marker.args:
        refused = f'{marker.args[0]!r} has no name. Write ignore="GG103", for example.'
    else:
        try:
            watching = watch(**options)
        except (OptionError, TypeError) as error:
            refused = str(error)
    if refused:
        pytest.fail(f"the marker watch_gradients: {refused}", pytrace=False)
    request.node.stash[_unjudged] = (watching, options["raise_on"])
    watching.start()
    try:
        yield watching
    finally:
        watching.stop()
    # What pytest does not call itself, the methods of unittest's classes, is judged here.
    if _unjudged in request.node.stash:
        _judge(request.node)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Judge when the test has returned, and before it counts as passed."""
    result = yield
    if _unjudged in pyfuncitem.stash:
        _judge(pyfuncitem)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Judge no test that has failed by itself."""
    report = yield
    if report.failed and _unjudged in item.stash:
        del item.stash[_unjudged]
    return report


def _judge(item: pytest.Item) -> None:
    __tracebackhide__ = True
    from gradgate.errors import FindingError
    from gradgate.session import raise_for

    watching, raise_on = item.stash[_unjudged]
    del item.stash[_unjudged]
    try:
        raise_for(watching.stop(), raise_on)
    except FindingError as error:
        found = str(error)
    else:
        return
    pytest.fail(found, pytrace=False)
