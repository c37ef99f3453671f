"""What provokes each message of gradgate, and what it then says.

The whole texts are in ``texts.txt``, by the name of the cause. ``python -m tests.messages`` writes that file anew.
Then read its diff.
"""

import functools
import re
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TEXTS = Path(__file__).with_name("texts.txt")


class Message(NamedTuple):
    """A message, and the file and line of gradgate that raised it."""

    kind: str
    text: str
    file: str
    line: int


def message_of(cause: Callable[[], Any]) -> Message:
    """Return what a cause raises. Of warnings, the first counts."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            cause()
        except Exception as error:  # noqa: BLE001
            (text,) = error.args  # an exception with two is printed as a tuple
            raised = traceback.extract_tb(error.__traceback__)[-1]
            file = raised.filename.replace("\\", "/").rpartition("gradgate/")[2]
            # By how much an estimate is off depends on the version of torch.
            text = re.sub(r"\d+\.\d% off", "N% off", text)
            return Message(type(error).__name__, text, file, raised.lineno or 0)
    raise AssertionError("nothing was raised")


@functools.cache
def messages() -> dict[str, Callable[[], Message]]:
    """Return what finds the message of each cause, by its name."""
    from tests.messages import accumulation, gates, planning

    cases = accumulation.CASES | gates.CASES | planning.CASES
    assert len(cases) == len(accumulation.CASES) + len(gates.CASES) + len(planning.CASES), (
        "a name is used twice"
    )
    return {name: functools.cache(functools.partial(message_of, cause)) for name, cause in cases.items()}


@functools.cache
def of_ranks() -> dict[str, Message]:
    """Return the messages of the first of two ranks, by the names of the causes."""
    from tests.messages import ranks
    from tests.ranks.processes import together

    first, _ = together(ranks.messages, 2)
    assert not isinstance(first, BaseException), first
    return {name: Message(*found) for name, found in first.items()}


def expected() -> dict[str, str]:
    """Return kind and text of each message, as they were last written."""
    blocks = (block.partition("\n") for block in TEXTS.read_text("utf-8").strip().split("\n\n"))
    return {name.removeprefix("# "): text for name, _, text in blocks}
