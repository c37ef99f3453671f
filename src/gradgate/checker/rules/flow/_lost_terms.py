"""Finds terms of a loss that get lost: the key of their weight is mistyped, or the next line overwrites them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from difflib import SequenceMatcher
from itertools import pairwise, product
from typing import TypeGuard

from gradgate.checker.analysis._constant_summands import has_graph
from gradgate.checker.analysis._queries import in_losses
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Scope,
    called,
    definitions,
    functions,
    is_function,
    key_of,
    may_be_module,
    names_read,
    own_nodes,
    part_of,
    returned,
    scopes_of,
)
from gradgate.checker.analysis._source import inside
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.flow._unused_weights import is_about
from gradgate.events import Backward, Frame

_LIKE = 0.6  # similarity of two keys, one of which is mistyped

_Entries = dict[str, ast.expr]


def mistyped_weights(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report a key in a dict of weights that no term has, next to a term that has no key and is not in the loss."""
    dicts = [(scope, entries) for file in run.files for scope in scopes_of(file) for entries in _dicts(scope)]
    calls = [event for event in run.of(Backward) if event.terms and event.reached & run.owned]
    added = {frame[:2] for event in calls for term in event.terms if term.weight for frame in term.site}
    for (where, several), (scope, terms) in product(dicts, dicts):
        weights = {key: value for key, value in several.items() if _is_weight(value)}
        known = [key for key in terms.keys() & weights.keys() if _lines(terms[key], scope, run.files) & added]
        unknown, left = (
            sorted(each) for each in (weights.keys() - terms.keys(), terms.keys() - several.keys())
        )
        for key, name in product(unknown, left) if known else ():
            if (
                _is_like(key, name)
                and _lines(terms[name], scope, run.files).isdisjoint(added)
                and has_graph(run, scope, terms[name], run.files)
            ):
                yield rule.finding(
                    Frame(where.file, weights[key].lineno, getattr(where.node, "name", "<module>")),
                    f"The weight `{key}` names no term, and the term `{name}` (line {terms[name].lineno}) has no "
                    f"weight: none of {len(calls)} backward calls includes it.",
                    why="The term is computed, but training does not minimize it.",
                    advice=f"Rename the key to `{name}`. Read the weights without a default, so that a missing one "
                    "raises an error: weights[name].",
                    count=len(calls),
                    evidence={"term": terms[name].lineno},
                )
                return


def overwritten_terms(run: Run, rule: Rule, kind: re.Pattern[str]) -> Iterator[Finding]:
    """Report ``loss = recon + kl`` if the next line is ``loss = recon``, and no loss includes ``kl``."""
    for scope in (scope for file in run.files for scope in scopes_of(file)):
        used = {node.id for node in own_nodes(scope.node) if _is_read(node) and id(node) in in_losses(run)}
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
    """Yield the pairs of assignments of which the second directly follows the first."""
    for node in (scope.node, *own_nodes(scope.node)):
        for name in ("body", "orelse") if node is scope.node or not is_function(node) else ():
            block = getattr(node, name, ())
            for first, second in pairwise(block if isinstance(block, list) else ()):
                if isinstance(first, ast.Assign) and isinstance(second, ast.Assign):
                    yield first, second


def _is_read(node: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)


def _dicts(scope: Scope) -> Iterator[_Entries]:
    """Yield the entries of each dict that a function makes: ``{...}``, ``dict(...)``, or ``terms["kl"] = ...``."""
    filled: dict[str, _Entries] = {}
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield {str(key.value): value for key, value in pairs if isinstance(key, ast.Constant)}
        elif isinstance(node, ast.Call) and called(node) == "dict":
            yield {each.arg: each.value for each in node.keywords if each.arg}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            key = getattr(node.targets[0].slice, "value", None)
            if isinstance(key, str):
                filled.setdefault(key_of(node.targets[0]), {})[key] = node.value
    yield from filled.values()


def _is_weight(value: ast.expr) -> bool:
    return type(getattr(value, "value", None)) in (int, float)


def _is_like(key: str, name: str) -> bool:
    return is_about(key, name) or SequenceMatcher(None, key.lower(), name.lower()).ratio() >= _LIKE


def _lines(value: ast.expr, scope: Scope, files: tuple[str, ...]) -> set[tuple[str, int]]:
    """Return the lines of the expressions that compute a term."""
    made = made_by([value.id], scope, files) if isinstance(value, ast.Name) else {value}
    spans = [range(node.lineno, node.end_lineno + 1) for node in made]  # type: ignore[attr-defined]
    return {(file, line) for file in files for span in spans for line in span}


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
