"""The lines that compute a script's loss, as a function. Nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gradgate.checker.analysis._scopes import called, names_read, names_stored, own_calls
from gradgate.checker.analysis._source import block_of, function_at, inside, path_to
from gradgate.events import Frame

_LEAVES = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal)


class UnknownLossError(Exception):
    """The source does not show how the loss is computed. The message says why."""


@dataclass(frozen=True)
class LossSource:
    """How a loss is computed.

    Attributes:
        statements: statements that compute the values in ``loss``.
        loss: the expression on which ``backward`` is called.
        forward_line: the first line that calls a module.
        autocast: the autocast contexts that contain the forward pass and the loss and end before the step.
    """

    statements: tuple[ast.stmt, ...]
    loss: ast.expr
    forward_line: int
    autocast: tuple[ast.withitem, ...]

    @property
    def lines(self) -> tuple[int, int]:
        """The first and the last line of the source."""
        nodes: list[ast.stmt | ast.expr] = [*self.statements, self.loss]
        return min(node.lineno for node in nodes), max(node.end_lineno or node.lineno for node in nodes)

    @property
    def names(self) -> list[str]:
        """The names that the source reads without setting them first, sorted."""
        read: set[str] = set()
        known: set[str] = set()
        for node in (part for each in (*self.autocast, *self.statements, self.loss) for part in _parts(each)):
            read |= _read(node) - known
            known |= names_stored(node)
        return sorted(read)

    def function(self, batch: Sequence[str]) -> str:
        """Return the source of ``loss_fn(_batch)``, whose batch is a dict with these keys."""
        taken = [f"{name} = _batch[{name!r}]" for name in batch]
        body = [*taken, *map(ast.unparse, self.statements), f"return {ast.unparse(self.loss)}"]
        heads = ["def loss_fn(_batch):", *(f"with {ast.unparse(item)}:" for item in self.autocast)]
        lines = [f"{' ' * at}{head}" for at, head in enumerate(heads)]
        return "\n".join(
            [*lines, *(f"{' ' * len(heads)}{line}" for text in body for line in text.splitlines())]
        )


def loss_source(frame: Frame, forward_lines: Iterable[int]) -> LossSource:
    """Return the source of the loss of an optimizer step.

    Args:
        frame: where ``optimizer.step`` is called.
        forward_lines: the lines of the same function that called modules.

    Raises:
        UnknownLossError: the source does not show the loss.
    """
    function = function_at(frame)
    if function is None:
        raise UnknownLossError("the source cannot be read")
    calls = list(_backward_calls(function))
    if len(calls) != 1:
        many = "calls backward several times" if calls else "does not call backward"
        raise UnknownLossError(f"the function that steps the optimizer {many}")
    ((call, loss),) = calls
    here = path_to(frame.file, call.lineno)
    loop = next((node.lineno for node in reversed(here) if isinstance(node, (ast.For, ast.While))), 0)
    last = call.end_lineno or call.lineno
    first = min((line for line in forward_lines if loop <= line <= last), default=None)
    if first is None:
        raise UnknownLossError("the loop that calls backward does not call the model")
    ways = path_to(frame.file, first), here
    shared = next((at for at, (one, other) in enumerate(zip(*ways, strict=False)) if one is not other), None)
    if shared is None:  # the forward and the loss are in one statement
        statements: Sequence[ast.stmt] = ()
        if len(ways[0]) != len(ways[1]) or not isinstance(ways[1][-1], ast.Expr):
            raise UnknownLossError("the source does not show the call of the model")
    else:
        block = block_of(ways[0][shared - 1], ways[0][shared])
        if ways[1][shared] not in block or not isinstance(ways[1][shared], ast.Expr):
            raise UnknownLossError("backward is not called in the block that calls the model")
        statements = block[block.index(ways[0][shared]) : block.index(ways[1][shared])]  # type: ignore[arg-type]
    outside = path_to(frame.file, frame.line)
    left = [node for node in here if isinstance(node, ast.With) and node not in outside]
    autocast = tuple(item for node in left for item in node.items if "autocast" in ast.unparse(item))
    return LossSource(tuple(_needed(statements, loss)), loss, first, autocast)


def _needed(statements: Sequence[ast.stmt], loss: ast.expr) -> list[ast.stmt]:
    """Return the statements that compute the loss, directly or through other statements."""
    needed, kept = _read(loss), []
    for statement in reversed(statements):
        if needed & names_stored(statement):
            if any(isinstance(node, _LEAVES) for node in ast.walk(statement)):
                raise UnknownLossError(
                    f"the statement in line {statement.lineno} cannot be moved into a function"
                )
            kept.append(statement)
            needed |= _read(statement)
    return kept[::-1]


def _backward_calls(function: ast.AST) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yield each call of ``backward`` with its loss, including scaled losses and ``accelerator.backward(loss)``."""
    for call in own_calls(function):
        if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
            loss = call.args[0] if call.args else call.func.value
            yield call, loss.args[0] if isinstance(loss, ast.Call) and called(loss) == "scale" else loss


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the simple statements in a statement, and the headers of compound statements, in order."""
    inside = list(ast.iter_child_nodes(node))
    if not any(isinstance(child, (ast.stmt, ast.excepthandler)) for child in inside):
        yield node
        return
    for child in inside:
        yield from _parts(child) if isinstance(child, (ast.stmt, ast.excepthandler)) else (child,)


def _read(node: ast.AST) -> set[str]:
    """Return the names that a node reads. ``total += loss`` reads ``total``, too."""
    return names_read(node) | names_stored(*(each.target for each in inside(ast.AugAssign, node)))
