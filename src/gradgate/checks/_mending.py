"""The lines to change: where a mistake has one plain mending, the edits that make it.

A mending is offered only where the lines themselves say enough: a condition that counts from 0, a call that stands
on the wrong side of another in the same block. What it leaves parses; that it mends is held against the corpus.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gradgate.checks._finding import Finding
from gradgate.checks._source import loops_around, path_to
from gradgate.events import Frame


@dataclass(frozen=True)
class Edit:
    """Lines of source that come behind a line, or instead of it; none instead of a line: it goes."""

    line: int
    lines: tuple[str, ...] = ()
    instead: bool = True


def mending(finding: Finding) -> tuple[Edit, ...]:
    """Return the edits that mend a finding, in the order of lines; () where there is no plain one."""
    find = _MENDINGS.get(finding.code)
    spot = _Spot.of(finding)
    if find is None or spot is None:
        return ()
    edits = tuple(sorted(find(finding, spot), key=lambda edit: (edit.line, edit.instead)))
    return edits if edits and _parses(finding.file, edits) else ()


def mended(source: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    """Return a file's lines with the edits made."""
    lines: list[str] = []
    by_line: dict[int, list[Edit]] = {}
    for edit in edits:
        by_line.setdefault(edit.line, []).append(edit)
    for number, line in enumerate(source, start=1):
        here = by_line.get(number, [])
        if not any(edit.instead for edit in here):
            lines.append(line)
        lines += [new for edit in here for new in edit.lines]
    return lines


def _parses(file: str, edits: Sequence[Edit]) -> bool:
    try:
        ast.parse("\n".join(mended([line.rstrip("\r\n") for line in linecache.getlines(file)], edits)))
    except SyntaxError:
        return False
    return True


@dataclass(frozen=True)
class _Spot:
    """A statement of one line, what stands beside it, and the loops around it, the innermost first."""

    file: str
    statement: ast.stmt
    block: Sequence[ast.stmt]
    loops: Sequence[ast.For | ast.While]

    @classmethod
    def of(cls, finding: Finding) -> _Spot | None:
        path = path_to(finding.file, finding.line)
        if len(path) < 2 or not isinstance(path[-1], ast.stmt):
            return None
        for name in ("body", "orelse", "finalbody"):
            block = getattr(path[-2], name, ())
            if path[-1] in block:
                frame = Frame(finding.file, finding.line, "")
                return cls(finding.file, path[-1], block, loops_around(frame))
        return None

    def text(self, line: int) -> str:
        return linecache.getline(self.file, line).rstrip("\r\n")

    def indent(self, line: int) -> str:
        text = self.text(line)
        return text[: len(text) - len(text.lstrip())]

    def moved(self, *, behind: ast.stmt | None = None, before: ast.stmt | None = None) -> list[Edit]:
        """Return the edits that put this statement elsewhere in its block."""
        beside = behind or before
        one = self.statement
        if beside is None or one.lineno != one.end_lineno:
            return []
        place = (beside.end_lineno or beside.lineno) if behind is not None else beside.lineno - 1
        return [Edit(one.lineno), Edit(place, (self.text(one.lineno),), instead=False)]

    def calls(self, name: str, *, of: str | None = None) -> list[ast.stmt]:
        """Return the statements of the block that are calls of a method."""
        return [one for one in self.block if _method(one) == name and (of is None or _owner(one) == of)]


def _method(statement: ast.stmt) -> str:
    value = getattr(statement, "value", None)
    function = value.func if isinstance(value, ast.Call) else None
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _owner(statement: ast.stmt) -> str:
    value = getattr(statement, "value", None)
    function = value.func if isinstance(value, ast.Call) else None
    return ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""


def _window(finding: Finding, spot: _Spot) -> list[Edit]:
    """Count from 1 in the condition of the step, and step for what is left at the end of the loop."""
    statement, loop = spot.statement, spot.loops[0] if spot.loops else None
    if not isinstance(statement, ast.If) or not isinstance(loop, ast.For):
        return []
    found = re.match(r"(\s*)if \(?(\w+)( \+ 1)?\)? % (.+?) == 0:(.*)$", spot.text(statement.lineno))
    over = loop.iter
    if (
        found is None
        or not isinstance(over, ast.Call)
        or getattr(over.func, "id", "") != "enumerate"
        or len(over.args) != 1
        or over.keywords
        or not isinstance(over.args[0], (ast.Name, ast.Attribute))
        or not isinstance(loop.target, ast.Tuple)
        or getattr(loop.target.elts[0], "id", "") != found[2]
    ):
        return []
    indent, i, _, size, rest = found.groups()
    loader = ast.unparse(over.args[0])
    line = f"{indent}if ({i} + 1) % {size} == 0 or {i} + 1 == len({loader}):{rest}"
    return [Edit(statement.lineno, (line,))]


def _undivided(finding: Finding, spot: _Spot) -> list[Edit]:
    """Divide the loss by the number of micro-batches."""
    size = finding.evidence.get("micro_batches")
    found = re.match(r"(\s*)(\w+)\.backward\(\)(\s*#.*)?$", spot.text(spot.statement.lineno))
    if found is None or not finding.fix.startswith("(loss / "):
        return []
    return [Edit(spot.statement.lineno, (f"{found[1]}({found[2]} / {size}).backward(){found[3] or ''}",))]


def _cleared(finding: Finding, spot: _Spot) -> list[Edit]:
    """Clear behind the step."""
    named = re.match(r"Call ([\w.]+)\.zero_grad\(\)", finding.fix)
    if named is None:
        return []
    name = named[1].removeprefix("self.")
    steps = [one for one in spot.calls("step") if re.search(rf"\b{re.escape(name)}\b", ast.unparse(one))]
    owner = re.search(rf"[\w.]*\b{re.escape(name)}\b", ast.unparse(steps[-1])) if steps else None
    if owner is None or spot.calls("zero_grad", of=owner[0]):
        return []
    line = steps[-1].end_lineno or steps[-1].lineno
    return [Edit(line, (f"{spot.indent(steps[-1].lineno)}{owner[0]}.zero_grad()",), instead=False)]


def _clears_too_early(finding: Finding, spot: _Spot) -> list[Edit]:
    """Move the calls that clear, between a backward call and the steps, behind the steps."""
    if _method(spot.statement) != "zero_grad":
        return []
    backward = [one.lineno for one in spot.calls("backward") if one.lineno < spot.statement.lineno]
    steps = [one for one in spot.calls("step") if one.lineno > spot.statement.lineno]
    first = max(backward, default=spot.statement.lineno - 1)
    clearing = (
        [one for one in spot.calls("zero_grad") if first < one.lineno < steps[-1].lineno] if steps else []
    )
    return [edit for one in clearing for edit in replace(spot, statement=one).moved(behind=steps[-1])]


def _clears_too_late(finding: Finding, spot: _Spot) -> list[Edit]:
    """Move the call that clears right before the backward call whose step also used the other loss."""
    own = re.search(r"beside that of line (\d+)\.", finding.message)
    if _method(spot.statement) != "zero_grad" or own is None:
        return []
    before = [one for one in spot.calls("backward") if one.lineno == int(own[1])]
    return spot.moved(before=before[0]) if before else []


def _clips_elsewhere(finding: Finding, spot: _Spot) -> list[Edit]:
    """Move the call that clips between backward and step."""
    if not _method(spot.statement).startswith("clip_grad") or "Clip between" not in finding.fix:
        return []
    backward, steps = spot.calls("backward"), spot.calls("step")
    behind = [one for one in steps if backward and one.lineno > backward[-1].lineno]
    return spot.moved(before=behind[0]) if behind else []


def _keeps_the_graph(finding: Finding, spot: _Spot) -> list[Edit]:
    """Keep the value without its graph; leave retain_graph out."""
    text = spot.text(spot.statement.lineno)
    if finding.message.startswith("retain_graph=True"):
        less = re.sub(r"\(retain_graph=True\)", "()", text)
        return [Edit(spot.statement.lineno, (less,))] if less != text else []
    more = re.sub(r"(\+= |\.append\()(\w*loss\w*)(\)?\s*(#.*)?)$", r"\1\2.detach()\3", text)
    return [Edit(spot.statement.lineno, (more,))] if more != text else []


def _mode(finding: Finding, spot: _Spot) -> list[Edit]:
    """Switch back to training mode at the start of each epoch; tell a function the mode."""
    if finding.fix.startswith("Write training=self.training"):
        text = spot.text(finding.line)
        told = re.sub(r"(\bdropout\w*\([^()]*)\)", r"\1, training=self.training)", text)
        return [Edit(finding.line, (told,))] if told != text else []
    if _method(spot.statement) != "eval" or not spot.loops:
        return []
    loop = spot.loops[-1]
    line = loop.body[0].lineno - 1
    return [
        Edit(line, (f"{spot.indent(loop.body[0].lineno)}{_owner(spot.statement)}.train()",), instead=False)
    ]


def _advances_early(finding: Finding, spot: _Spot) -> list[Edit]:
    """Move the call that advances the schedule behind the step."""
    if _method(spot.statement) != "step" or not finding.fix.startswith("Move scheduler.step()"):
        return []
    later = [one for one in spot.calls("step") if one.lineno > spot.statement.lineno]
    return spot.moved(behind=later[0]) if later else []


_MENDINGS: Mapping[str, Callable[[Finding, _Spot], Sequence[Edit]]] = {
    "GG101": _window,
    "GG102": _undivided,
    "GG201": _cleared,
    "GG202": _clears_too_early,
    "GG203": _clears_too_late,
    "GG301": _advances_early,
    "GG302": _clips_elsewhere,
    "GG601": _keeps_the_graph,
    "GG602": _mode,
}
