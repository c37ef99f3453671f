"""Renders a flow as text, as a table for notebooks, and as a Sankey diagram."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradgate.errors import OptionError
from gradgate.gates._reach import Reach
from gradgate.notebook_tables import NOTHING, USED, WASTED, Mark, Stream, card, faint, sankey

_WIDTH = 88


@dataclass
class _Module:
    """A module or parameter: its path, its children, and all the parameters in it."""

    path: str
    children: dict[str, _Module] = field(default_factory=dict)
    parameters: list[Reach] = field(default_factory=list)

    @property
    def uniform(self) -> bool:
        """Whether the module's parameters have the same stops, and either all or none are reached."""
        return len({(parameter.reached, parameter.stops) for parameter in self.parameters}) == 1

    @property
    def size(self) -> str:
        """``4 tensors, 226 parameters``"""
        tensors, parameters = len(self.parameters), sum(math.prod(each.shape) for each in self.parameters)
        return f"{tensors} tensor{'s' * (tensors != 1)}, {parameters:,} parameter{'s' * (parameters != 1)}"

    @property
    def count(self) -> str:
        """How many of its parameter tensors the loss reaches, as text."""
        reached = sum(parameter.reached for parameter in self.parameters)
        if len(self.parameters) == 1:
            return "reached" if reached else "stopped"
        return f"{reached} of {len(self.parameters)}"

    @property
    def outcome(self) -> str:
        """How many paths lead to its parameters, or what stops their gradient, as text."""
        paths = [parameter.paths for parameter in self.parameters]
        stops = self.parameters[0].stops
        if not any(paths):
            return ", ".join(map(str, stops))
        least, most = _short(min(paths)), _short(max(paths))
        texts = [f"{least if least == most else f'{least} to {most}'} {'path' if most == '1' else 'paths'}"]
        texts += [f"but {stop}" for stop in stops if stop.unstepped]
        texts += [f"another stopped by {stop}" for stop in stops if not stop.unstepped]
        return ", ".join(texts)

    @property
    def color(self) -> str:
        first = self.parameters[0]
        if not first.reached:
            return NOTHING
        return WASTED if any(stop.unstepped for stop in first.stops) else USED

    def rows(self, indent: str = "") -> Iterator[tuple[str, _Module]]:
        """Yield the tree below this module, down to modules that are uniform."""
        if self.uniform:
            return
        for number, (name, child) in enumerate(self.children.items(), start=1):
            last = number == len(self.children)
            yield f"{indent}{'└─ ' if last else '├─ '}{name}", child
            yield from child.rows(indent + ("   " if last else "│  "))


def _tree(parameters: Sequence[Reach]) -> _Module:
    root = _Module("")
    for parameter in parameters:
        module = root
        module.parameters.append(parameter)
        for name in parameter.name.split("."):
            path = f"{module.path}.{name}".lstrip(".")
            module = module.children.setdefault(name, _Module(path))
            module.parameters.append(parameter)
    return root


def _rows(model: str, parameters: Sequence[Reach]) -> list[tuple[str, _Module]]:
    """Return the rows of the text and of the table: the modules of the tree, each with its label."""
    root = _tree(parameters)
    return [(model, root), *root.rows()]


def to_text(model: str, parameters: Sequence[Reach]) -> str:
    """Return the tree, at most as wide as a terminal."""
    rows = _rows(model, parameters)
    width = max(len(label) for label, _ in rows)
    lines = []
    for label, module in rows:
        outcome = module.outcome if module.uniform else "tensors" if module.path == "" else ""
        start = f"{label.ljust(width)}  {module.count.ljust(9)}"
        wrapper = textwrap.TextWrapper(
            _WIDTH, start, " " * len(start), break_long_words=False, break_on_hyphens=False
        )
        lines += wrapper.wrap(outcome) or [start]
    return "\n".join(line.rstrip() for line in lines)


def to_html(model: str, parameters: Sequence[Reach]) -> str:
    """Return the tree as a table."""
    rows = [
        (
            label.replace(" ", "\u00a0"),
            module.size,
            module.count,
            Mark(module.outcome, module.color) if module.uniform else "",
        )
        for label, module in _rows(model, parameters)
    ]
    reached = sum(parameter.reached for parameter in parameters)
    subtitle = f"the loss reaches {reached} of {len(parameters)} tensors"
    return card(model, subtitle, rows, head=("module", "size", "reached", "gradient"))


def to_figure(model: str, parameters: Sequence[Reach]) -> Any:
    """Return the diagram: from the loss through modules to the outcome of their gradients."""
    try:
        from plotly import graph_objects  # type: ignore[import-untyped]
    except ImportError as error:
        raise OptionError(
            "flow.figure: plotly, which draws the figure, is not installed. Run pip install 'gradgate[show]', or "
            "print the flow."
        ) from error

    def streams() -> Iterator[Stream]:
        for _, module in _rows(model, parameters):
            if not module.uniform:
                continue
            stops, reached = module.parameters[0].stops, module.parameters[0].reached
            unused = ", ".join(str(stop) for stop in stops if stop.unstepped)
            end = f"stopped: {', '.join(map(str, stops))}"
            if reached:
                end = f"unused: {unused}" if unused else "moves"
            name, color = module.path or model, module.color
            size = sum(math.prod(parameter.shape) for parameter in module.parameters) or 1
            yield Stream(("loss", name, end), size, color, faint(color), f"{name}: {module.size}\n{end}")

    layout = {"title": {"text": f"Gradient of the loss in {html.escape(model)}"}, "font": {"size": 13}}
    return graph_objects.Figure([sankey(streams())], layout)


def _short(number: int) -> str:
    return str(number) if number < 1_000_000 else f"{float(number):.1e}" if number < 1e300 else "countless"
