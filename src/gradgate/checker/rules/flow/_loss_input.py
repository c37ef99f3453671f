"""A loss that expects log-probabilities gets other values.

## What it does
Reads the input of ``nll_loss``, ``ctc_loss`` and ``kl_div`` from the first graphs of each backward call. Reports
the output of a softmax, the output of a linear or convolutional layer, and a ``log_softmax`` over a dimension
other than the classes. Also checks that the exponentials of the log-probabilities add up to 1 over the classes.

## Why is this bad?
The loss runs and its value falls, but the gradient is not the gradient of a likelihood. With probabilities, it
vanishes where the model is most wrong. With scores, the loss has no lower bound.

## Example
    probabilities = F.softmax(model(x), dim=1)
    loss = F.nll_loss(probabilities, y)

## Use instead
    log_probabilities = F.log_softmax(model(x), dim=1)
    loss = F.nll_loss(log_probabilities, y)

or ``F.cross_entropy(model(x), y)``, which contains the ``log_softmax``.

## Known limits
Log-likelihoods that a model computes in another way need not be normalized and are not reported. The input of
``kl_div`` is checked only if its target has no graph and ``log_target`` is off.

## Sources
https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, key_of
from gradgate.checker.analysis._source import nodes_of, statement_at
from gradgate.checker.analysis._statement import CLOSED, Statement
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Combined, Frame, Ids, Site

_WHY = {
    "probabilities": "The gradient vanishes where the model is most wrong, and the loss is no likelihood.",
    "scores": "Without log_softmax, the loss has no lower bound: it falls as the scores grow.",
    "other axis": "The classes of a sample don't compete: the loss is no likelihood of the targets.",
}
_IS = {
    "probabilities": "the output of a softmax",
    "scores": "the output of a layer",
    "other axis": "a log_softmax over a dimension other than the classes",
}
_ADVICE = {
    "probabilities": "Use log_softmax instead of softmax.",
    "scores": "Apply log_softmax over the classes first. cross_entropy includes log_softmax.",
    "other axis": "Apply log_softmax over the dimension of the classes.",
}


def _judge(run: Run) -> Iterator[Finding]:
    found: dict[tuple[Site, str], list[Combined]] = defaultdict(list)
    for event in run.of(Combined):
        if event.how in _IS and event.site and event.parameters & run.owned:
            found[event.site, event.how].append(event)
    for (site, how), events in found.items():
        loss = _loss_at(site[0])
        if loss is None:
            continue
        ids: Ids = frozenset().union(*(event.parameters for event in events)) & run.owned
        yield RULE.finding(
            site,
            f"{loss} expects log-probabilities but gets {_IS[how]}.",
            why=_WHY[how],
            advice=_ADVICE[how],
            fix=_normalized if how == "scores" else (),
            count=sum(event.site == events[0].backward for event in run.of(Backward)),
            evidence={"parameters": len(ids)},
            about=ids,
        )


_LOSSES = ("kl_div", "KLDivLoss", "nll_loss", "NLLLoss", "ctc_loss", "CTCLoss")


def _loss_at(frame: Frame) -> str | None:
    """Return the loss that a line calls, directly or through a torch module."""
    statement = statement_at(frame)
    return (
        next((name for _, name in _losses_in(statement, frame.file)), None) if statement is not None else None
    )


def _losses_in(statement: ast.AST, file: str) -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls of these losses in a statement, with the loss's name."""
    given = {
        key_of(target): called(value)
        for node in nodes_of([file])
        if isinstance(node, ast.Assign)
        for each in node.targets
        for target, value in _pairs(each, node.value)
        if isinstance(value, ast.Call)
    }
    for call in ast.walk(statement):
        if isinstance(call, ast.Call):
            inner = called(call.func) if isinstance(call.func, ast.Call) else ""
            names = [
                name for name in (called(call), given.get(key_of(call.func), ""), inner) if name in _LOSSES
            ]
            if names:
                yield call, names[0]


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Return each target of an assignment with its value."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


# The fix


def _normalized(at: Statement) -> Fix:
    """Apply log_softmax to the first argument."""
    for call, name in _losses_in(at.node, at.file):
        value = call.args[0] if call.args else None
        if isinstance(value, CLOSED):
            text = ast.unparse(call)
            dim = -1 if name.lower().startswith(("ctc", "kl")) else 1
            new = text.replace(ast.unparse(value), f"{ast.unparse(value)}.log_softmax({dim})", 1)
            return (Replace(at.line, text, new),) if ast.unparse(call.func) not in ast.unparse(value) else ()
    return ()


RULE = Rule("GG409", "loss-input", "warning", __doc__ or "", _judge)
