"""A gradient becomes inf or NaN, and a step uses it.

## What it does
Follows gradients back through the graph to the first operation that received a finite gradient and returned a
non-finite one: the square root of 0, the logarithm of 0, or a division by 0. If the loss itself is NaN, the rule
names the first operation whose result was NaN. Only gradients that an optimizer's step used are reported. If a
gradient scaler skips the step, nothing is reported.

## Why is this bad?
One NaN in a gradient makes the parameter NaN and, after the next step, all other parameters. ``torch.where``
doesn't help: the gradient of the branch that is not selected is 0 times infinity, which is NaN.

## Example
    plogp = torch.where(p > 0, p * p.log(), 0.0)      # its gradient is NaN where p is 0

## Use instead
    plogp = torch.where(p > 0, p * p.clamp(min=1e-9).log(), 0.0)

## Known limits
Divergence is not reported. A run has diverged if its loss grew a millionfold before the step.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html; github.com/pytorch/pytorch/issues/68425.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import flow_gradients as texts
from gradgate.events import Backward, NonfiniteMade, Stepped

_GROWN = 1e6  # a loss that grew this much has diverged: any operation overflows then

# By autograd's node, without its number: the values at which its derivative is infinite, and how to avoid them.
_CURES = {
    "Acos Asin Atanh Erfinv": "Keep the argument within (-1, 1), where the derivative is finite: "
    "clamp(-1 + 1e-6, 1 - 1e-6).",
    "Acosh": "Keep the argument above 1, where the derivative is infinite: clamp(min=1 + 1e-6).",
    "Log Log2 Log10 Log1p": "Keep the argument of the logarithm away from 0: clamp(min=1e-8). For a softmax or "
    "sigmoid, use log_softmax or logsigmoid of the logits: a clamped probability has no gradient.",
    "Exp Expm1 Sinh Cosh": "Limit the argument with clamp(max=...), or use a stable form: softmax, "
    "logsumexp, softplus.",
    "Std Var StdMean VarMean": "A standard deviation has an infinite derivative if all values are equal, and "
    "is NaN for a single value: use (x.var(unbiased=False) + eps).sqrt(), and leave out samples of one value.",
    "CtcLoss CudnnCtcLoss": "The loss of a target that is longer than its input is infinite: check "
    "input_lengths and target_lengths, or pass zero_infinity=True.",
    "Sqrt Rsqrt Norm LinalgVectorNorm Cdist Dist": "A root has an infinite derivative at 0: add eps under "
    "the root, or clamp(min=1e-8) before it.",
    "Softmax LogSoftmax Logsumexp": "A row that is -inf everywhere has no softmax: keep one entry of each "
    "row unmasked.",
    "Where Mul MaskedFill Pow Div": "0 times infinity is NaN, also for a branch that torch.where or a mask "
    "leaves out: keep divisors and the arguments of roots, powers and logarithms away from 0 before the "
    "selection, by clamp(min=1e-8) or + eps.",
}
_OTHERWISE = "Keep divisors and the arguments of roots and logarithms away from 0: clamp(min=1e-8), or + eps."


def _judge(run: Run) -> Iterator[Finding]:
    used = [number for number, event in run.numbered(Stepped) if event.nonfinite]
    if not used or _diverged(run, used[0]):
        return
    stepped = run.stepped(used[0])
    made = [
        event
        for event in run.events[: used[0]]
        if isinstance(event, NonfiniteMade) and event.site and event.parameters & stepped.nonfinite
    ]
    if not made:
        return
    first = next((event for event in made if event.loss), made[0])
    name = first.node.rstrip("0123456789").removesuffix("Backward")
    yield RULE.say(
        first.site,
        texts.NOT_FINITE,
        count=len(used),
        about=stepped.nonfinite,
        what="The loss is" if first.loss else "The gradient becomes",
        operation=name,
        optimizer=run.optimizer(stepped.optimizer),
        parameters=run.names(stepped.nonfinite),
        step=sum(number <= used[0] for number, _ in run.numbered(Stepped)),
        cure=next((cure for nodes, cure in _CURES.items() if name in nodes.split()), _OTHERWISE),
    )


def _diverged(run: Run, step: int) -> bool:
    """Return whether the losses had diverged before a step."""
    values = [
        abs(event.value)
        for event in run.events[:step]
        if isinstance(event, Backward) and event.value is not None and math.isfinite(event.value)
    ]
    return bool(values) and max(values) > _GROWN * (abs(values[0]) + 1e-6)


RULE = Rule("GG404", "nonfinite-gradient", "error", __doc__ or "", _judge)
