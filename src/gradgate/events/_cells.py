"""Cells of notebooks. Where another program has a file name, a cell has ``train.ipynb cell 3``."""

from __future__ import annotations

from typing import NamedTuple

_BETWEEN = ".ipynb cell "


class Cell(NamedTuple):
    """A code cell of a notebook. Cells are numbered as in ``[3]``, which Jupyter shows after running all."""

    notebook: str
    number: int

    @property
    def file(self) -> str:
        """The name that stands for the cell's source in events and tracebacks."""
        return f"{self.notebook} cell {self.number}"


def cell_of(file: str) -> Cell | None:
    """Return the cell that a name stands for, or None for a file."""
    before, between, number = file.rpartition(_BETWEEN)
    return Cell(f"{before}.ipynb", int(number)) if between and number.isdecimal() else None
