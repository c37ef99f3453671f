"""Finds terms that the next line drops, or that stay in a dict, and the expressions that compute a term."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from itertools import pairwise

from gradgate.checker.analysis._constant_summands import has_graph
from gradgate.checker.analysis._queries import in_losses
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Scope,
    called,
    definitions,
    functions,
    is_function,
    is_read,
    may_be_module,
    names_read,
    own_nodes,
    part_of,
    returned,
    scope_at,
    scopes_of,
)
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import inside, loops_around, nodes_of
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Frame, Site


def overwritten_terms(run: Run, rule: Rule, kind: re.Pattern[str]) -> Iterator[Finding]:
    """Report ``loss = recon + kl`` if the next line is ``loss = recon``, and no loss includes ``kl``."""
    for scope in (scope for file in run.files for scope in scopes_of(file)):
        used = {node.id for node in own_nodes(scope.node) if is_read(node) and id(node) in in_losses(run)}
        for first, second in _adjacent(scope):
            target, kept = first.targets[0], names_read(second.value)
            if ast.dump(target) != ast.dump(second.targets[0]) or not isinstance(target, ast.Name):
                continue
            lost = (
                node for node in inside(ast.Name, first.value) if kind.search(node.id) and node.id not in kept
            )
            for node in lost if target.id not in kept and target.id in used else ():
                made = made_by([node.id], scope, run.files)
                if (
                    node.id not in used
                    and all(isinstance(each, (ast.BinOp, ast.Call)) for each in made)
                    and has_graph(run, scope, node, run.files)
                ):
                    yield rule.finding(
                        Frame(scope.file, second.lineno, getattr(scope.node, "name", "<module>")),
                        f"This line overwrites `{target.id}` of line {first.lineno}, which nothing has read: no "
                        f"loss includes `{node.id}`.",
                        why="The term is computed, but training does not minimize it.",
                        advice=f"Include `{node.id}` in the value that is kept.",
                        evidence={"overwritten": first.lineno},
                    )
                    break


def _adjacent(scope: Scope) -> Iterator[tuple[ast.Assign, ast.Assign]]:
    """Yield each pair of assignments in which the second directly follows the first."""
    for node in (scope.node, *own_nodes(scope.node)):
        for name in ("body", "orelse") if node is scope.node or not is_function(node) else ():
            block = getattr(node, name, ())
            for first, second in pairwise(block if isinstance(block, list) else ()):
                if isinstance(first, ast.Assign) and isinstance(second, ast.Assign):
                    yield first, second


def made_by(
    names: Iterable[str], scope: Scope, files: tuple[str, ...], *, deep: bool = False
) -> set[ast.AST]:
    """Return the expressions that assign these names, even through other names and returned tuples.

    With ``deep``, also return the expressions that assign the names in these expressions.
    """
    found: set[ast.AST] = set()
    todo = [(scope, each.value, each.place) for name in names for each in definitions(scope).get(name, ())]
    for inner, value, place in todo:  # grows during the loop
        several: list[tuple[Scope, ast.expr, int | None]] = []
        if isinstance(value, ast.Call):
            scopes = functions(called(value), files)
            if place is not None and not scopes and may_be_module(value, inner.file, files):
                scopes = functions("forward", files)
            parts = [(each, part) for each in scopes for part in returned(each)]
            several = [
                (each, *(part_of(part, place) if place is not None else (part, None))) for each, part in parts
            ]
        found |= set() if several or isinstance(value, ast.Name) else {value}
        for node in ast.walk(value) if deep or isinstance(value, ast.Name) else ():
            made = (
                definitions(inner).get(node.id, ())
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
                else ()
            )
            several += [(inner, each.value, each.place) for each in made]
        todo += [each for each in several if each not in todo]
    return found


def left_entries(held: str, in_loss: list[ast.AST], backward: Site, terms: re.Pattern[str]) -> set[str]:
    """Return the entries of a dict of losses that the loss leaves out, if the loss reads other entries by key."""
    read = {id(node.value): key for node in in_loss if (key := _key(node, held))}  # type: ignore[attr-defined]
    keys = set(read.values())
    # A single key may be the key of the sum.
    if (
        len(keys) < 2
        or any(re.fullmatch(r"loss|.*(total|sum|all).*", key) for key in keys)
        or any(isinstance(node, ast.Name) and node.id == held and id(node) not in read for node in in_loss)
    ):
        return set()
    scope, loops = scope_at(backward[0]), loops_around(backward[0])
    beside = {id(node) for node in own_nodes(scope.node)} if scope is not None else set()
    beside -= {id(node) for node in (ast.walk(loops[0]) if loops else ())}  # nodes of another loop
    made: set[str] = set()
    for node in nodes_of(files_of([backward])):
        if id(node) in beside:
            continue
        if isinstance(node, ast.Dict):
            several = {str(key.value) for key in node.keys if isinstance(key, ast.Constant)}
            made |= several if keys < several else set()
        elif isinstance(getattr(node, "ctx", None), ast.Store):
            made |= {_key(node, held)}
    return {f"{held}[{key!r}]" for key in made - keys if key and terms.search(f"{held} {key}")}


def _key(node: ast.AST, held: str) -> str:
    """Return the key of ``losses["kl"]``, or ""."""
    if not isinstance(node, ast.Subscript) or not isinstance(node.value, ast.Name) or node.value.id != held:
        return ""
    key = getattr(node.slice, "value", None)
    return key if isinstance(key, str) else ""
