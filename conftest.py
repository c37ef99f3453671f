"""What holds for tests, docstring examples and the code blocks of README and docs alike."""

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
from sybil import Sybil
from sybil.parsers.markdown import SkipParser

from tests.printed import python_blocks


def pytest_configure(config: pytest.Config) -> None:
    """Import torch where tests run. The process that only deals them out starts the others sooner without it."""
    if config.getoption("dist", "no") != "no":
        return
    gc.disable()  # until all is collected: imports leave no garbage, but millions of objects to visit
    import torch
    import torch._dynamo

    # The tensors here are too small to share between threads: the hand-over costs more than it saves.
    torch.set_num_threads(1)
    # For a device that is missing, torch.manual_seed() would keep each call, with the stack that it came from.
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None


def _seed(_: object) -> None:
    import torch

    torch.manual_seed(0)


collect_ignore = ["docs/_site"]  # for Sphinx alone

# The blocks of one page share their names, from top to bottom, as a reader would type them in.
pytest_collect_file = Sybil(
    parsers=[python_blocks(), SkipParser()],
    patterns=["README.md", "README.zh-CN.md", "docs/*.md", "docs/**/*.md"],
    setup=_seed,
).pytest()


def pytest_collection_finish() -> None:
    """Hide from the garbage collector what was imported: two million objects of torch and the trainers."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Hide what a file or script has imported and cached, too, so that no garbage collection visits it again."""
    if nextitem is not None and _dealt(nextitem.nodeid) != _dealt(item.nodeid):
        gc.collect()
        gc.freeze()


# The tests of a script share no more than its runs: each script is dealt out by itself. They come last, as what is
# largest comes first, so that workers end together.
DEALT_ONE_BY_ONE = ("tests/test_scripts.py",)


def _dealt(nodeid: str) -> str:
    """Return the name of the group of tests that is dealt out as one: a file, or all tests of a script."""
    file, _, test = nodeid.partition("::")
    return f"{file}::{test.partition('[')[2] or test}" if file in DEALT_ONE_BY_ONE else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Start one worker more than there are cores: tests that wait for other processes leave a core idle."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, as --dist=loadfile does, but split those that can be split."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _dealt(nodeid)

    return Files(config, log)


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    _seed(None)


@pytest.fixture(autouse=True)
def _nothing_compiled_is_left() -> Iterator[None]:
    """Where something is compiled, the watcher looks at less: that is one test's affair."""
    yield
    import torch

    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _public_names(doctest_namespace: dict[str, Any]) -> None:
    """Docstring examples use gradgate's public names as a reader would, without importing them."""
    import torch

    import gradgate

    doctest_namespace |= {"torch": torch, "gg": gradgate}
    doctest_namespace |= {name: getattr(gradgate, name) for name in gradgate.__all__}
