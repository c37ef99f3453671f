"""Edits of the rules that do not state their fix as a value yet: read off their prose. To go, rule by rule."""

from __future__ import annotations

import ast
import builtins
import keyword
import linecache
import re
from collections.abc import Callable, Mapping, Sequence

from gradgate.checker.fixes import _graphs, _lists, _moves
from gradgate.checker.fixes._edit import Edit, apply, merged
from gradgate.checker.fixes._spot import Spot
from gradgate.checker.rules._finding import Finding

_BY_CODE: Mapping[str, Sequence[Callable[[Finding, Spot], Sequence[Edit]]]] = {
    "GG402": (_graphs.with_its_graph,),
    "GG403": (_graphs.not_rounded,),
    "GG404": (_graphs.away_from_zero,),
    "GG405": (_graphs.without_gradients,),
    "GG501": (_lists.added,),
    "GG502": (_lists.made_later,),
    "GG503": (_lists.once,),
    "GG504": (_lists.made_once,),
    "GG505": (_moves.evaluates_what_is_frozen, _moves.frozen_for_good),
    "GG601": (_graphs.let_go,),
    "GG602": (_moves.mode,),
}


def edits_by_prose(finding: Finding) -> tuple[Edit, ...]:
    """Return the edits of a finding whose rule has no typed fix."""
    spot = Spot.of(finding)
    if spot is None:
        return ()
    for find in _BY_CODE.get(finding.code, ()):
        edits = merged(find(finding, spot))
        if edits and holds(finding.file, edits):
            return edits
    return ()


def holds(file: str, edits: Sequence[Edit]) -> bool:
    """Say whether a file with the edits made is another program, and knows all names that come with them."""
    before = [line.rstrip("\r\n") for line in linecache.getlines(file)]
    after = apply(before, edits)
    if after == before:
        return False
    try:
        known = _bound(ast.parse("\n".join(after))) | _used(ast.parse("\n".join(before)))
    except SyntaxError:
        return False
    old = {name for edit in edits if edit.instead for name in _names(before[edit.line - 1])}
    new = {name for edit in edits for line in edit.lines for name in _names(line)}
    return new - old <= known


def _names(line: str) -> set[str]:
    """Return the names in a line of source; it may be a part of a statement."""
    code = re.sub(r"'[^']*'|\"[^\"]*\"", "''", line).partition("#")[0]
    found = re.finditer(r"(?<![\w.])[^\W\d]\w*(?!\w)(?!\s*=[^=])", code)
    return {one[0] for one in found} - {*keyword.kwlist, *dir(builtins)}


def _used(tree: ast.Module) -> set[str]:
    return {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}


def _bound(tree: ast.Module) -> set[str]:
    """Return the names that a file binds somewhere."""
    names = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    for one in ast.walk(tree):
        if isinstance(one, (ast.Import, ast.ImportFrom)):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in one.names}
        elif isinstance(one, ast.arg):
            names.add(one.arg)
        elif isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(one.name)
    return names
