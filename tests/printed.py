"""Code blocks of documents, with what they print: a block ``output`` right behind a block of Python is checked."""

import contextlib
import io
import re
import warnings

from sybil import Example
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser

_OUTPUT = re.compile(r"\s*^```output\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_WIDTH = 116


class _Evaluator(PythonEvaluator):
    def __call__(self, example: Example) -> None:
        shown = _OUTPUT.match(example.document.text, example.end)
        if shown is None:
            super().__call__(example)
            return
        printed, wrapped = self._printed(example)
        expected = " ".join(shown[1].split()) if wrapped else shown[1].rstrip()
        pattern = re.escape(expected).replace(re.escape("..."), ".*?")
        assert re.fullmatch(pattern, printed, re.DOTALL), f"shown:\n{expected}\nprinted:\n{printed}"

    def _printed(self, example: Example) -> tuple[str, bool]:
        """Return what a block prints, with warnings and the error, and whether the page may wrap it."""
        stream, wrapped = io.StringIO(), False

        def show(message: Warning | str, category: type[Warning], *_: object) -> None:
            nonlocal wrapped
            wrapped = True
            stream.write(f"{category.__name__}: {message}\n")

        with contextlib.redirect_stdout(stream), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            try:
                super().__call__(example)
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001
                wrapped = True
                stream.write(f"{type(error).__name__}: {error}\n")
        printed = stream.getvalue().rstrip()
        wrapped = wrapped or any(len(line) > _WIDTH for line in printed.splitlines())
        return " ".join(printed.split()) if wrapped else printed, wrapped


def python_blocks() -> CodeBlockParser:
    """Return a parser of Python blocks, the invisible ones in comments too. ``...`` in an output is any text."""
    return CodeBlockParser("python", _Evaluator())
