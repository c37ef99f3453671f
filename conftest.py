"""What holds for tests, docstring examples and the code blocks of README and docs alike."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
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


@pytest.fixture(autouse=True)
def _same_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_compiled_is_left() -> Iterator[None]:
    """Where something is compiled, the watcher looks at less: that is one test's affair."""
    yield
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _public_names(doctest_namespace: dict[str, Any]) -> None:
    """Docstring examples use gradgate's public names as a reader would, without importing them."""
    import gradgate

    doctest_namespace |= {"torch": torch, "gg": gradgate}
    doctest_namespace |= {name: getattr(gradgate, name) for name in gradgate.__all__}
