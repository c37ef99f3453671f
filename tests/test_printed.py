"""The blocks of documents: what one prints, its warnings, or the error that it ends in, is what the page shows."""

from pathlib import Path

import pytest
from sybil import Document

from tests.printed import python_blocks


def run(folder: Path, page: str) -> None:
    path = folder / "page.md"
    path.write_text(page, "utf-8")
    for example in Document.parse(str(path), python_blocks()).examples():
        example.evaluate()


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("print(1)\nprint('a  b')", "1\na  b"),
        ("print(1)\nint('x')", "1\nValueError: invalid literal for int()\n    with base 10: 'x'"),
        ("import warnings\nwarnings.warn('a long one')\nprint(1)", "UserWarning: a\n  long one 1"),
        ("print('took 3 s, and more')", "took ... s, and more"),
    ],
)
def test_what_a_block_shows_is_what_it_prints(code: str, shown: str, tmp_path: Path) -> None:
    page = f"```python\n{code}\n```\n\n```output\n{shown}\n```\n"
    run(tmp_path, page)
    with pytest.raises(AssertionError, match="shown:"):
        run(tmp_path, page.replace(shown, f"{shown}!"))
    with pytest.raises(AssertionError, match="shown:"):
        run(tmp_path, page.replace("```output", "```output\nmore"))


def test_an_error_that_a_page_does_not_show_is_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        run(tmp_path, "```python\nint('x')\n```\nText.\n```output\nValueError: ...\n```\n")


def test_an_invisible_block_is_run(tmp_path: Path) -> None:
    run(tmp_path, "```python\na = 1\n```\n<!-- invisible-code-block: python\nassert a == 1\n-->\n")
    with pytest.raises(AssertionError):
        run(tmp_path, "<!-- invisible-code-block: python\nassert 1 == 2\n-->\n")
