"""Notebook cells. In events, the name of a cell, ``train.ipynb cell 3``, takes the place of a file's path."""

from __future__ import annotations

from typing import NamedTuple

_BETWEEN = ".ipynb cell "


class Cell(NamedTuple):
    """A code cell of a notebook. Cells are numbered as Jupyter shows them after running all cells: ``[3]``."""

    notebook: str
    number: int

    @property
    def file(self) -> str:
        """The cell's name where events and tracebacks name a file."""
        return f"{self.notebook} cell {self.number}"


def cell_of(file: str) -> Cell | None:
    """Return the cell of this name, or None if the name is that of a file."""
    before, between, number = file.rpartition(_BETWEEN)
    return Cell(f"{before}.ipynb", int(number)) if between and number.isdecimal() else None
