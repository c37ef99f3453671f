"""Finds lists that hold one module several times: ``[build()] * 5`` calls ``build`` once."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._source import inside, spans, statement_at
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, OptimizerMade


def repeated_modules(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report ``[module()] * n`` if a loss uses the module's parameters twice, or optimizers hold them twice."""
    twice = union(
        [*(each.reused for each in run.of(Backward)), *(each.twice for each in run.of(OptimizerMade))]
    )
    made = ((frame[:2], number) for number in run.moved for frame in run.parameters[number].made)
    for (file, line), numbers in grouped(made).items():
        at, ids = Frame(file, line, ""), frozenset(numbers)
        for node in _repeated(at)[:1] if ids <= twice or len(run.optimizers_of(ids)) > 1 else ():
            item = ast.unparse(node.left)[1:-1]
            yield rule.finding(
                at,
                f"Multiplying the list repeats the same module, so all its items share {run.names(ids)}.",
                why="The constructor is called once. What looks like several layers or networks has the weights of "
                "one.",
                advice=f"Build each item: [{item} for _ in range({ast.unparse(node.right)})]. If the weights are "
                "shared on purpose, give the module a name first, and repeat the name.",
                severity="warning",
                count=sum(bool(event.reached & ids) for event in run.of(Backward)),
                evidence={"parameters": len(ids)},
                about=ids,
            )


def _repeated(frame: Frame) -> list[ast.BinOp]:
    """Return the lists that a line repeats, if it also makes their items."""
    return [
        node
        for node in inside(ast.BinOp, statement_at(frame))
        if isinstance(node.op, ast.Mult)
        and isinstance(node.left, ast.List)
        and any(isinstance(item, ast.Call) for item in node.left.elts)
        and getattr(node.right, "value", None) not in (0, 1)
        and spans(node.left, frame.line)
    ]
