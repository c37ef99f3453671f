"""What provokes each message of gradgate, and what it then says.

The whole texts are in ``texts.txt``, by the name of the cause. ``python -m tests.messages`` writes that file anew.
Then read its diff.
"""

import functools
import re
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, NamedTuple

import pytest

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
            frames = traceback.extract_tb(error.__traceback__)
            raised = [frame for frame in frames if not frame.filename.endswith("user_warnings.py")][-1]
            file = raised.filename.replace("\\", "/").rpartition("gradgate/")[2]
            # By how much an estimate is off depends on the version of torch.
            text = re.sub(r"\d+\.\d% off", "N% off", text)
            return Message(type(error).__name__, text, file, raised.lineno or 0)
    raise AssertionError("nothing was raised")


@functools.cache
def messages() -> dict[str, Callable[[], Message]]:
    """Return what finds the message of each cause, by its name."""
    from tests.messages import accumulation, checker, gates, planning

    tables = [each.CASES for each in (accumulation, gates, planning, checker)]
    cases = {name: cause for table in tables for name, cause in table.items()}
    assert len(cases) == sum(map(len, tables)), "a name is used twice"
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


# What differs between messages of one cause: the call, names of parameters, types, values in quotes or brackets,
# capitalized words, dotted names, and numbers.
VALUE = re.compile(
    r"""^[\w.]+(?=:) | \b(?:parameter\ )?\d+\ of\ group\ \d+\ \([^()]*\) | \b(?:list|tuple)\ of\ \d+\b
    | \b(?:bool|dict|float|inf|int|list|nan|object|str|tuple)\b | (?<!\w)'[^']*'(?!\w) | "[^"]*"
    | \w*\[[^]]*\] | \([^()]*\) | \b[A-Z]\w* | \b\w+(?:[._][\w<>]+)+(?:\([^()]*\))? | -?\b\d[\d.]*\b""",
    re.VERBOSE,
)
MOST_REPLACED = 4  # words that one fact replaces


def sentence_of(text: str) -> str:
    """Return a message without its names, numbers and shapes. A list of names counts as one name."""
    return re.sub(r"_((,|, and| and)? _)*( more)?", "_", VALUE.sub("_", text))


def check(error: BaseException, name: str, facts: tuple[object, ...]) -> None:
    """Check that an error or warning is the one of a cause in ``texts.txt``, and states these facts.

    A word of the message is in the sentence of the cause, or in a fact.
    """
    kind, _, text = expected()[name].partition(": ")
    assert type(error).__name__ == kind
    for fact in facts:
        assert str(fact) in str(error)
    given = {word.strip(".,;:") for fact in facts for word in f"{fact} {sentence_of(str(fact))}".split()}
    found, wanted = sentence_of(str(error)).split(), sentence_of(text).split()
    for same, start, stop, first, last in SequenceMatcher(None, wanted, found, autojunk=False).get_opcodes():
        if same != "equal":
            assert {word.strip(".,;:") for word in found[first:last]} <= given, f"{found}\n{wanted}"
            assert stop - start <= MOST_REPLACED, f"{found}\n{wanted}"


@contextmanager
def raises(kind: type[BaseException], name: str, *facts: object) -> Iterator[pytest.ExceptionInfo]:  # type: ignore[type-arg]
    """Expect the error of a cause in ``texts.txt``, with other names and numbers: those in ``facts``."""
    with pytest.raises(kind) as caught:
        yield caught
    check(caught.value, name, facts)


@contextmanager
def warns(kind: type[Warning], name: str, *facts: object) -> Iterator[pytest.WarningsRecorder]:
    """Expect the warning of a cause in ``texts.txt``, with other names and numbers: those in ``facts``."""
    with pytest.warns(kind) as recorded:
        yield recorded
    (warning,) = [each.message for each in recorded if isinstance(each.message, kind)]
    assert isinstance(warning, Warning)
    check(warning, name, facts)
