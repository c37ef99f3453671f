"""What holds for tests, docstring examples and the code blocks of README and docs alike."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch._dynamo
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

# The tensors here are too small to share between threads: the hand-over costs more than it saves.
torch.set_num_threads(1)

collect_ignore = ["docs/_site"]  # for Sphinx alone

# The blocks of one page share their names, from top to bottom, as a reader would type them in.
pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser(), SkipParser()],
    patterns=["README.md", "README.zh-CN.md", "docs/*.md", "docs/**/*.md"],
    setup=lambda namespace: torch.manual_seed(0),
).pytest()


class Frozen:
    """The objects that the suite hides from the garbage collector: all that was imported before the first test.

    Torch, its compiler and the trainers are two million objects. The collector would visit them again and again,
    and so would every watcher that looks for live modules. ``gc.get_freeze_count`` counts only what a test froze,
    since no module that a test trains is among the suite's own.
    """

    def __init__(self) -> None:
        self._count = gc.get_freeze_count
        self._ours = 0
        gc.get_freeze_count = lambda: max(0, self._count() - self._ours)

    def freeze(self) -> None:
        gc.freeze()
        self._ours = self._count()

    def unfreeze(self) -> None:
        gc.unfreeze()
        self._ours = 0


FROZEN = Frozen()


def pytest_collection_finish() -> None:
    gc.collect()
    FROZEN.freeze()


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """For a test in which the collector has to find what an imported module or class holds."""
    FROZEN.unfreeze()
    yield
    gc.collect(1)  # the young: the rest would take a second
    FROZEN.freeze()


# Files whose tests share no fixture: they are dealt out one by one, last, so that workers end together.
DEALT_ONE_BY_ONE = ("tests/test_scripts.py", "tests/ranks/test_checked_ranks.py")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker whole files, as --dist=loadfile does, but split those that can be split."""
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if nodeid.startswith(DEALT_ONE_BY_ONE) else nodeid.partition("::")[0]

    return Files(config, log)


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_compiled_is_left() -> Iterator[None]:
    """Where something is compiled, the watcher looks at less: that is one test's affair."""
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _public_names(doctest_namespace: dict[str, Any]) -> None:
    """Docstring examples use gradgate's public names as a reader would, without importing them."""
    import gradgate

    doctest_namespace |= {"torch": torch, "gg": gradgate}
    doctest_namespace |= {name: getattr(gradgate, name) for name in gradgate.__all__}
