"""The fixture ``gradgate_watch``: a test that requests it fails if its training loop is wrong.

``pytest --gradgate`` watches every test. A test without a backward call takes a few milliseconds longer.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from gradgate.checker._watch import Watching

_FIXTURE = "gradgate_watch"
_unjudged: pytest.StashKey[tuple[Any, Any]] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that watch every test and select rules."""
    group = parser.getgroup("gradgate", "gradgate: watch training loops")
    group.addoption(
        "--gradgate",
        action="store_true",
        help="watch every test, and fail it if its training loop is wrong",
    )
    for name, does in (("select", "report only"), ("ignore", "do not report")):
        group.addoption(
            f"--gradgate-{name}",
            action="append",
            metavar="RULES",
            help=f"with --gradgate: {does} these rules: GG103, GG1, accumulation-window; repeatable",
        )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        "gradgate_watch(select=(), ignore=(), raise_on='warning'): watch the test's training loop",
    )
    if config.getoption("--gradgate"):
        from gradgate.checker._watch import watch
        from gradgate.errors import OptionError

        try:  # once, instead of in every test
            watch(**_chosen(config))
        except OptionError as error:
            raise pytest.UsageError(f"--gradgate: {error}") from None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Request the fixture for tests with the marker, and for all tests with the option."""
    names = getattr(item, "fixturenames", None)
    if names is None or _FIXTURE in names:
        return
    if item.config.getoption("--gradgate") and isinstance(item, pytest.Function):
        names.insert(0, _FIXTURE)  # before fixtures that create a model and may train it
    elif item.get_closest_marker(_FIXTURE) is not None:
        names.append(_FIXTURE)


@pytest.fixture
def gradgate_watch(request: pytest.FixtureRequest) -> Iterator[Watching]:
    """Watch the test's training loop, and fail the test on warnings and errors.

    The fixture's value is the result of ``gradgate.watch()``. The marker takes options and requests the fixture:
    ``@pytest.mark.gradgate_watch(ignore="GG103", raise_on="error")``.
    """
    __tracebackhide__ = True
    from gradgate.checker._watch import watch
    from gradgate.errors import OptionError

    marker = request.node.get_closest_marker(_FIXTURE)
    options = {
        "raise_on": "warning",
        **(_chosen(request.config) if request.config.getoption("--gradgate") else {}),
        **(marker.kwargs if marker is not None else {}),
    }
    try:
        if marker is not None and marker.args:
            raise OptionError(
                f'{marker.args[0]!r} is not a keyword argument. Write ignore="GG103", for example.'
            )
        watching = watch(**options)
    except (OptionError, TypeError) as error:
        pytest.fail(f"marker gradgate_watch: {error}", pytrace=False)
    request.node.stash[_unjudged] = (watching, options["raise_on"])
    watching.start()
    try:
        yield watching
    finally:
        watching.stop()
    # pytest itself does not call methods of unittest.TestCase, so report on them here.
    if _unjudged in request.node.stash:
        _judge(request.node)


def _chosen(config: pytest.Config) -> dict[str, Any]:
    """Return the rules that the command line selects and ignores."""
    return {name: config.getoption(f"--gradgate-{name}") or [] for name in ("select", "ignore")}


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Report after the test has returned and before it counts as passed."""
    result = yield
    if _unjudged in pyfuncitem.stash:
        _judge(pyfuncitem)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip the report for a test that has already failed."""
    report = yield
    if report.failed and _unjudged in item.stash:
        del item.stash[_unjudged]
    return report


def _judge(item: pytest.Item) -> None:
    __tracebackhide__ = True
    from gradgate.checker._watch import raise_for
    from gradgate.errors import FindingError

    watching, raise_on = item.stash[_unjudged]
    del item.stash[_unjudged]
    try:
        raise_for(watching.stop(), raise_on)
    except FindingError as error:
        pytest.fail(str(error), pytrace=False)
