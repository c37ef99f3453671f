"""A flow as a tree of modules; what is alike in all its parts is one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradgate.gates._flow import Flow, Reach

_WIDTH = 88


@dataclass
class Branch:
    """A module: its path, its parts, and the parameters in all of them."""

    path: str
    parts: dict[str, Branch] = field(default_factory=dict)
    parameters: list[Reach] = field(default_factory=list)

    @property
    def alike(self) -> bool:
        """Whether all parameters have the same fate."""
        return len({(one.reached, one.stops) for one in self.parameters}) == 1

    def folded(self) -> Iterator[Branch]:
        """Yield the largest parts whose parameters have all the same fate, in order."""
        if self.alike:
            yield self
        else:
            for part in self.parts.values():
                yield from part.folded()


def tree_of(flow: Flow) -> Branch:
    """Return a flow's parameters by module."""
    root = Branch("")
    for one in flow.parameters:
        branch = root
        branch.parameters.append(one)
        for name in one.name.split("."):
            path = f"{branch.path}.{name}".lstrip(".")
            branch = branch.parts.setdefault(name, Branch(path))
            branch.parameters.append(one)
    return root


def to_text(flow: Flow) -> str:
    """Return the tree, at most as wide as a terminal usually is."""
    root = tree_of(flow)
    rows = [(flow.model, root), *_rows(root, "")]
    if root.alike:
        rows = rows[:1]
    width = max(len(label) for label, _ in rows)
    lines = []
    for label, branch in rows:
        start = f"{label.ljust(width)}  {_count(branch).ljust(9)}"
        fate = fate_of(branch) if branch.alike else "parameters" if branch is root else ""
        lines += _wrapped(start, fate)
    return "\n".join(lines)


def _rows(branch: Branch, indent: str) -> Iterator[tuple[str, Branch]]:
    if branch.alike:
        return
    parts = list(branch.parts.items())
    for name, part in parts:
        last = name == parts[-1][0]
        yield f"{indent}{'└─ ' if last else '├─ '}{name}", part
        yield from _rows(part, indent + ("   " if last else "│  "))


def _count(branch: Branch) -> str:
    reached = sum(one.reached for one in branch.parameters)
    if len(branch.parameters) == 1:
        return "reached" if reached else "stopped"
    return f"{reached} of {len(branch.parameters)}"


def fate_of(branch: Branch) -> str:
    """Return through how many paths the parameters are reached, and what stops the others."""
    paths = [one.paths for one in branch.parameters]
    stops = branch.parameters[0].stops
    if not any(paths):
        return ", ".join(map(str, stops))
    least, most = min(paths), max(paths)
    number = _short(most) if least == most else f"{_short(least)} to {_short(most)}"
    parts = [f"{number} {'path' if most == 1 else 'paths'}"]
    parts += [f"but {stop}" for stop in stops if stop.unstepped]
    others = [f"another stopped by {stop}" for stop in stops if not stop.unstepped]
    return ", ".join(parts + others)


def _short(number: int) -> str:
    return str(number) if number < 1_000_000 else f"{float(number):.1e}" if number < 1e300 else "countless"


def _wrapped(start: str, text: str) -> list[str]:
    lines = [start]
    empty = True
    for part in text.split(", "):
        joined = f"{lines[-1]}{'' if empty else ', '}{part}"
        if len(joined) >= _WIDTH and not empty:  # a comma may follow
            lines[-1] += ","
            joined = f"{' ' * len(start)}{part}"
            lines.append("")
        lines[-1] = joined
        empty = False
    return [line.rstrip() for line in lines]
