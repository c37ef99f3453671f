"""The input of a loss is of the wrong kind: probabilities, log-probabilities or logits.

## What it does
Reads the input of a loss from the first graphs of each backward call.

- ``nll_loss``, ``ctc_loss`` and ``kl_div`` expect log-probabilities, whose exponentials add up to 1 over the
  classes. Reports other inputs that are the output of a softmax, of a linear or convolutional layer, or of a
  ``log_softmax`` over another dimension.
- ``cross_entropy``, ``log_softmax``, ``Categorical(logits=...)`` and ``binary_cross_entropy_with_logits`` expect
  logits. Reports the output of a softmax or sigmoid, which is then applied twice.
- A class loss over a sequence expects the next tokens. Reports targets that are the tokens two positions later,
  because both the data and the model, or the loss, shift them. Also reports targets that are the model's input
  itself, if the model is causal: each operation uses only the same or earlier positions.

## Why is this bad?
The loss runs and its value falls, but the gradient is not the gradient of a likelihood. With probabilities, the
gradient vanishes where the model is most wrong. A second softmax sees only values between 0 and 1, so the loss
can't get close to 0: with 10 classes it stays above 1.46. With scores instead of log-probabilities, the loss has no
lower bound.

## Example
    probabilities = F.softmax(model(x), dim=1)
    loss = F.cross_entropy(probabilities, y)

## Use instead
    loss = F.cross_entropy(model(x), y)

or ``F.nll_loss(F.log_softmax(model(x), dim=1), y)``, which is the same loss.

## Known limits
Log-likelihoods that a model computes in another way need not be normalized and are not reported. Neither are
probabilities that are scaled, shifted or clamped before the loss, or a ``log_softmax`` before ``cross_entropy``,
which changes nothing. The input of ``kl_div`` is checked only if its target has no graph and ``log_target`` is off.
An edit removes a softmax only if the call of the loss contains it, because other code may use the probabilities.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html, torch.nn.CrossEntropyLoss.html
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._queries import Combination, combinations
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called, definitions, key_of, last_name, scopes_of
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import inside, nodes_of, statement_at, tree_of
from gradgate.checker.analysis._statement import CLOSED, Statement, operand
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Frame, Site

# What the input of the loss is, why that is wrong, and what to write
_INPUTS = {
    "probabilities": (
        "the output of a softmax",
        "The gradient vanishes where the model is most wrong, and the loss is not a likelihood.",
        "Use log_softmax instead of softmax for the first argument.",
    ),
    "scores": (
        "the output of a layer",
        "Without log_softmax, the loss has no lower bound: it falls as the scores grow.",
        "Apply log_softmax over the classes first. cross_entropy includes log_softmax.",
    ),
    "other axis": (
        "a log_softmax over a dimension other than the classes",
        "The classes of a sample don't compete: the loss is not a likelihood of the targets.",
        "Apply log_softmax over the dimension of the classes.",
    ),
}
_LOSSES = ("kl_div", "KLDivLoss", "nll_loss", "NLLLoss", "ctc_loss", "CTCLoss")
_OF_LOGITS = ("cross_entropy", "binary_cross_entropy_with_logits", "log_softmax")
_RESHAPES = ("flatten", "view", "reshape", "squeeze", "unsqueeze")
_FUNCTIONS = ("softmax", "sigmoid")
_READ = 3  # backward calls whose graphs are read
_FIRST_LEFT_OUT = re.compile(r"1:|.*\+ 1:.*\+ 1.*|.*\+ 1:")
_LABELS = re.compile(r"label|target|\by\b|:-1\b", re.IGNORECASE)


def _judge(run: Run) -> Iterator[Finding]:
    several = list(combinations(run, _INPUTS))
    of_softmaxes = [each for each in several if each.first.made and _losses_at(each.site[0])]
    for softmax, given in grouped((each.first.made[0], each) for each in of_softmaxes).items():
        if len({each.site[0].line for each in given}) > 1:
            yield _of_several(softmax, given)
            several = [each for each in several if each not in given]
    for each in several:
        kind, why, advice = _INPUTS[each.how]
        for _, loss in _losses_at(each.site[0])[:1]:
            yield RULE.finding(
                each.site,
                f"{loss} expects log-probabilities but gets {kind}.",
                why=why,
                advice=advice,
                fix=_normalized if each.how == "scores" else (),
                severity="warning",
                **each.measured,
            )
    for each in combinations(run, ["normalized twice"]):
        line = _layer_line(each.site, files_of([each.site, each.first.backward])) or innermost(each.site)
        names = {last_name(node).lower() for node in inside(ast.expr, statement_at(line))}
        which = " or ".join(sorted(names & {*_FUNCTIONS}) or _FUNCTIONS)
        yield RULE.finding(
            line,
            f"The {which} computed here is passed to a loss that applies a second one: the loss expects logits.",
            why="The gradient vanishes where the model is confident, even if it is wrong, and the loss can't "
            "reach 0.",
            advice=f"Pass the values before the {which} to the loss. Apply the {which} only where the script needs "
            "probabilities.",
            fix=_given_logits,
            **each.measured,
        )
    for each in combinations(run, ["shifted twice"]):
        if len(each.numbers) >= _READ:
            yield RULE.finding(
                _shift_line(run) or innermost(each.site),
                "The target at each position is the token two positions later in the model's input: the labels are "
                "shifted twice.",
                why="The model never learns the next token.",
                advice="Shift once. A model or loss that shifts the labels itself, such as those of transformers, "
                "takes labels that equal its input.",
                **each.measured,
            )
    for each in combinations(run, ["not shifted"]):
        if len(each.numbers) >= _READ:
            yield RULE.finding(
                innermost(each.site),
                "The target at each position is the token that the model reads at this position, although its "
                "attention or recurrence is causal, as for predicting the next token.",
                why="The model learns to copy its input, and never the next token.",
                advice="Shift the labels by one: the target at position t is the token at position t + 1.",
                **each.measured,
            )


def _shift_line(run: Run) -> Frame | None:
    """Return the only line that shifts labels: it leaves out their first position, ``labels[:, 1:]``."""
    found = {
        Frame(file, node.lineno, "")
        for file in run.files
        for node in inside(ast.Subscript, tree_of(file))
        if any(_FIRST_LEFT_OUT.fullmatch(ast.unparse(each)) for each in inside(ast.Slice, node.slice))
        and _LABELS.search(ast.unparse(statement_at(Frame(file, node.lineno, "")) or node))
    }
    return found.pop() if len(found) == 1 else None


def _of_several(softmax: Frame, given: list[Combination]) -> Finding:
    """Report a softmax whose output several losses get."""
    names = dict.fromkeys(name for each in given for _, name in _losses_at(each.site[0])[:1])
    lines = sorted({each.site[0].line for each in given})
    keys = {key_of(call.func) for call in inside(ast.Call, statement_at(softmax))}
    layers = [
        softmax._replace(line=each.value.lineno)
        for scope in scopes_of(softmax.file)
        for key in keys
        for each in definitions(scope).get(key, ())
        if isinstance(each.value, ast.Call) and called(each.value) == "Softmax"
    ]
    return RULE.finding(
        layers[0] if len(layers) == 1 else softmax,
        f"{' and '.join(names)} at lines {', '.join(map(str, lines[:-1]))} and {lines[-1]} "
        f"get{'s' if len(names) == 1 else ''} the output of the softmax at this line instead of log-probabilities.",
        why=_INPUTS["probabilities"][1],
        advice="Use log_softmax (nn.LogSoftmax) here, and its exp() where the script needs probabilities.",
        severity="warning",
        count=sum(each.times for each in given),
        evidence={"losses": len(lines)},
        about=given[0].ids.union(*(each.ids for each in given)),
    )


def _losses_at(frame: Frame) -> list[tuple[ast.Call, str]]:
    """Return the calls of these losses at a line, directly or through a torch module, with the loss's name."""
    made = {
        key: called(each.value)
        for scope in scopes_of(frame.file)
        for key, several in definitions(scope).items()
        for each in several
        if isinstance(each.value, ast.Call)
    }
    found = []
    for call in inside(ast.Call, statement_at(frame)):
        inner = called(call.func) if isinstance(call.func, ast.Call) else ""
        names = (called(call), made.get(key_of(call.func), ""), inner)
        found += [(call, name) for name in names if name in _LOSSES]
    return found


def _normalized(at: Statement) -> Fix:
    """Apply log_softmax to the first argument."""
    for call, name in _losses_at(Frame(at.file, at.line, "")):
        value = call.args[0] if call.args else None
        if isinstance(value, CLOSED):
            text = ast.unparse(call)
            dim = -1 if name.lower().startswith(("ctc", "kl")) else 1
            new = text.replace(ast.unparse(value), f"{ast.unparse(value)}.log_softmax({dim})", 1)
            return (Replace(at.line, text, new),) if ast.unparse(call.func) not in ast.unparse(value) else ()
    return ()


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
    losses = [call for call in at.calls() if called(call) in _OF_LOGITS and call.args]
    inner = losses[0].args[0] if len(losses) == 1 else None
    while isinstance(inner, ast.Call) and called(inner) in _RESHAPES:
        inner = getattr(inner.func, "value", None)
    if not isinstance(inner, ast.Call) or called(inner) not in _FUNCTIONS:
        return ()
    of = getattr(inner.func, "value", ast.Name("self"))
    of_torch = ast.unparse(of) in ("torch", "F", "nn.functional", "torch.nn.functional")
    value = next(iter(inner.args), ast.Name("self")) if of_torch else of
    # self.softmax(x) is a layer.
    return (Replace(at.line, ast.unparse(inner), operand(value)),) if ast.unparse(value) != "self" else ()


RULE = Rule("GG409", "loss-input", "error", __doc__ or "", _judge)
