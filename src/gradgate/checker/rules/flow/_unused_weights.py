"""Finds weights of loss terms that a script sets but never reads, except to display them."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

from gradgate.checker.analysis._scopes import called, key_of
from gradgate.checker.analysis._source import nodes_of
from gradgate.events import Frame

# ent_coef, l1_lambda, klWeight; lambda_tv, w_smooth
_KIND = "coeff?(?:icient)?|weight|lambda|lam|lmbda|scale|strength|factor|alpha|beta"
_WEIGHT = re.compile(
    rf"(?P<before>\w+?)_?(?:{_KIND})|(?:{_KIND}|w)_(?P<after>\w+)|beta|lam|lambda_|lmbda", re.IGNORECASE
)
_NO_TERM = frozenset(
    ["loss", "term", "class", "sample", "init", "lr", "learning", "rate", "pos", "neg", "weight"]
)


class Weight(NamedTuple):
    """A loss weight, its term and its line. The name states the term: "ent" for ``ent_coef``, "" for ``beta``."""

    name: str
    term: str
    at: Frame


@functools.lru_cache(maxsize=64)
def unused_weights(files: tuple[str, ...]) -> tuple[Weight, ...]:
    """Return the weights that these files set to anything but zero and never read, except to display them."""
    nodes = [(file, node) for file in files for node in nodes_of([file])]
    shown = {id(inner) for _, node in nodes if isinstance(node, ast.JoinedStr) for inner in ast.walk(node)}
    read = {name for _, node in nodes if id(node) not in shown for name in _read_in(node)}
    found = []
    for file, node in nodes:
        for name, value in _set_in(node):
            match = _WEIGHT.fullmatch(name)
            number = (
                value.value if isinstance(value, ast.Constant) else isinstance(value, (ast.BinOp, ast.Call))
            )
            if match and name not in read and isinstance(number, (int, float)) and number:
                term = match["before"] or match["after"] or ""
                found.append(Weight(name, term, Frame(file, value.lineno, "")))
    return tuple(found)


def is_about(name: str, term: str) -> bool:
    """Return whether a name and a term share a word or the beginning of a word: ``entropy`` and ``ent``."""
    return any(
        min(len(first), len(second)) > 1 and (first.startswith(second) or second.startswith(first))
        for first in _words(name)
        for second in _words(term)
    )


def _words(name: str) -> set[str]:
    return set(name.lower().replace("cross_entropy", "").split("_")) - _NO_TERM


def _set_in(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that a statement, default argument, dict or command-line option sets, with their values."""
    if isinstance(node, ast.Assign):
        yield from ((_name(target), node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield _name(node.target), node.value
    elif isinstance(node, ast.arguments):
        several = [*node.posonlyargs, *node.args][::-1]
        yield from ((each.arg, value) for each, value in zip(several, node.defaults[::-1], strict=False))
        yield from (
            (each.arg, value) for each, value in zip(node.kwonlyargs, node.kw_defaults, strict=True) if value
        )
    elif isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values, strict=True)
        yield from ((str(getattr(key, "value", "")), value) for key, value in pairs)
    elif isinstance(node, ast.Call) and called(node) == "add_argument" and node.args:
        option = str(getattr(node.args[-1], "value", "")).lstrip("-").replace("-", "_")
        yield from ((option, each.value) for each in node.keywords if each.arg == "default")


def _read_in(node: ast.AST) -> Iterator[str]:
    """Yield the names, attributes and keys that a node reads, except in ``self.beta = beta``."""
    targets = [_name(target) for target in node.targets] if isinstance(node, ast.Assign) else []
    targets += [node.arg or ""] if isinstance(node, ast.keyword) else []
    option = isinstance(node, ast.Call) and called(node) == "add_argument"
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, (ast.Name, ast.Attribute)) and isinstance(inner.ctx, ast.Load):
            yield from {_name(inner)} - set(targets)
        elif isinstance(inner, ast.Constant) and isinstance(node, (ast.Subscript, ast.Call)) and not option:
            yield str(inner.value)


def _name(node: ast.AST) -> str:
    return key_of(node).lstrip(".")
