"""A list multiplication repeats one module, so that all layers share its parameters.

## What it does
Looks for ``nn.ModuleList([Layer(...)] * n)`` and ``nn.Sequential(*[Layer(...)] * n)`` where the layer has
parameters and a container held it several times during the run.

## Why is this bad?
``[Layer()] * n`` calls the constructor once and repeats a reference. The network has the parameters of a single
layer. Each parameter gets the sum of the gradients of all n uses. The network trains, but with a fraction of its
capacity.

## Example
    self.layers = nn.ModuleList([Block(width)] * depth)

## Use instead
    self.layers = nn.ModuleList([Block(width) for _ in range(depth)])

## Known limits
Only a layer that is constructed inside the list is reported. ``[self.shared] * depth`` repeats a named module,
which is assumed to be intended. Nothing is reported in a file whose text says that weights are shared or tied.

## Sources
"How do I create a multidimensional list?" in https://docs.python.org/3/faq/programming.html
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import last_name
from gradgate.checker.analysis._source import path_to, spans, whole_text
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Frame

_ON_PURPOSE = re.compile(r"(?i)shar(e|ing)|\btied\b|\btying|tie_|albert|universal.transformer|recursi")
_CONTAINERS = ("ModuleList", "Sequential")


def _judge(run: Run) -> Iterator[Finding]:
    found: dict[tuple[Frame, str], set[int]] = defaultdict(set)
    for number in run.owned:
        parameter = run.parameters.get(number)
        for frame in parameter.made if parameter is not None and parameter.repeated > 1 else ():
            several = _repetition(frame)
            if several is not None:
                found[Frame(frame.file, several.lineno, ""), ast.unparse(several)].add(number)
                break
    for (where, text), ids in found.items():
        if _ON_PURPOSE.search(whole_text(where.file)):
            continue
        times = max(run.parameters[number].repeated for number in ids)
        yield RULE.finding(
            where,
            f"`{text}` repeats one module: {times} layers share {run.names(ids)}.",
            why="The list holds the same object several times: the network has the capacity of a single layer.",
            advice="Construct each layer: [Layer(...) for _ in range(n)].",
            fix=_comprehension,
            count=times,
            evidence={"layers": times, "parameters": len(ids)},
            about=ids,
        )


def _repetition(frame: Frame) -> ast.BinOp | None:
    """Return the ``[Layer(...)] * n`` on a line, inside the call of a container."""
    path = path_to(frame.file, frame.line)
    for container in ast.walk(path[-1]) if len(path) > 1 else ():
        if not isinstance(container, ast.Call) or last_name(container.func) not in _CONTAINERS:
            continue
        for given in container.args:
            value = given.value if isinstance(given, ast.Starred) else given
            if isinstance(value, ast.BinOp) and spans(value, frame.line) and _parts(value) is not None:
                return value
    return None


def _parts(value: ast.BinOp) -> tuple[ast.Call, ast.expr] | None:
    """Return the call and ``n`` of ``[Layer(...)] * n`` or ``n * [Layer(...)]``."""
    for several, times in ((value.left, value.right), (value.right, value.left)):
        layers = several.elts if isinstance(several, ast.List) else []
        if isinstance(value.op, ast.Mult) and len(layers) == 1 and isinstance(layers[0], ast.Call):
            return layers[0], times
    return None


# The fix


def _comprehension(at: Statement) -> Fix:
    values = [node for node in at.expressions() if isinstance(node, ast.BinOp)]
    several = [(value, parts) for value in values if (parts := _parts(value)) is not None]
    if len(several) != 1:
        return ()
    value, (layer, times) = several[0]
    return (
        Replace(
            at.line,
            ast.unparse(value),
            f"[{ast.unparse(layer)} for _ in range({ast.unparse(times)})]",
        ),
    )


RULE = Rule("GG506", "repeated-module", "warning", __doc__ or "", _judge)
