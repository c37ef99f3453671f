"""A loss that expects logits gets probabilities.

## What it does
Looks for a softmax whose result is passed to ``cross_entropy``, ``log_softmax`` or ``Categorical(logits=...)``, and
for a sigmoid whose result is passed to ``binary_cross_entropy_with_logits``. These functions apply the softmax or
sigmoid themselves.

## Why is this bad?
The second softmax gets only values between 0 and 1, so the loss can't approach 0: with 10 classes it stays above
1.46. The gradient vanishes where the first softmax is confident, even if its prediction is wrong. Training is slow,
although the accuracy may still look right.

## Example
    def forward(self, x):
        return torch.softmax(self.head(x), dim=1)
    loss = F.cross_entropy(model(x), y)

## Use instead
    def forward(self, x):
        return self.head(x)                      # softmax only where probabilities are shown
    loss = F.cross_entropy(model(x), y)

## Known limits
Probabilities that are scaled, shifted or clamped before the loss are not reported, because this may be intended. A
``log_softmax`` before ``cross_entropy`` is not reported, because it changes nothing. The edit is made only if the
call of the loss contains the softmax: elsewhere, other code may use the probabilities.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html: "The input is expected to contain the
unnormalized logits".
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called, last_name
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import nodes_of
from gradgate.checker.analysis._statement import Statement, operand
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Combined, Frame, Site

_LOSSES = ("cross_entropy", "binary_cross_entropy_with_logits", "log_softmax")
_RESHAPES = ("flatten", "view", "reshape", "squeeze", "unsqueeze")
_FUNCTIONS = ("softmax", "sigmoid")


def _judge(run: Run) -> Iterator[Finding]:
    found: dict[Site, Combined] = {}
    calls: dict[Site, set[Site]] = defaultdict(set)
    for event in run.of(Combined):
        if event.how == "normalized twice" and event.site and event.parameters & run.owned:
            found.setdefault(event.site, event)
            calls[event.site].add(event.backward)
    for site, event in found.items():
        files = files_of([site, event.backward])
        yield RULE.finding(
            _layer_line(site, files) or innermost(site),
            "The softmax or sigmoid that is computed here is passed to a loss that applies another one: the loss "
            "expects logits.",
            why="The gradient vanishes where the first one is confident, even if it is wrong, and the loss "
            "can't reach 0.",
            advice="Pass the values before the softmax or sigmoid to the loss. Apply it only where the script "
            "needs probabilities.",
            fix=_given_logits,
            count=sum(each.site in calls[site] for each in run.of(Backward)),
            evidence={"parameters": len(event.parameters)},
            about=event.parameters,
        )


def _layer_line(site: Site, files: tuple[str, ...]) -> Frame | None:
    """Return the only line that constructs a softmax or sigmoid layer, if no line on the stack names one."""
    lines = {frame[:2] for frame in site}
    nodes = [(file, node) for file in files for node in nodes_of([file]) if isinstance(node, ast.expr)]
    names = [(file, node) for file, node in nodes if last_name(node).lower() in _FUNCTIONS]
    if any((file, node.lineno) in lines for file, node in names):
        return None
    made = [
        Frame(file, node.lineno, "")
        for file, node in nodes
        if isinstance(node, ast.Call) and called(node) in ("Softmax", "Sigmoid")
    ]
    return made[0] if len(made) == 1 else None


def _given_logits(at: Statement) -> Fix:
    """Remove a softmax from the arguments of the loss."""
    losses = [call for call in at.calls() if called(call) in _LOSSES and call.args]
    if len(losses) != 1:
        return ()
    inner = losses[0].args[0]
    while (
        isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and called(inner) in _RESHAPES
    ):
        inner = inner.func.value
    if (
        not isinstance(inner, ast.Call)
        or called(inner) not in _FUNCTIONS
        or not isinstance(inner.func, ast.Attribute)
    ):
        return ()
    of_torch = ast.unparse(inner.func.value) in ("torch", "F", "nn.functional", "torch.nn.functional")
    if of_torch and not inner.args:
        return ()
    value = inner.args[0] if of_torch else inner.func.value
    if not of_torch and ast.unparse(value) == "self":
        return ()  # self.softmax(x), a layer
    return (Replace(at.line, ast.unparse(inner), operand(value)),)


RULE = Rule("GG411", "double-softmax", "error", __doc__ or "", _judge)
