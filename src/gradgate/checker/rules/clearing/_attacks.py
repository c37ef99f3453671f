"""Finds adversarial attacks whose backward calls also fill the gradients that the training step uses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._gradient_reads import reads_gradients
from gradgate.checker.excuses import attacked_loss
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Frame

_LEAST = 2  # steps that use an attack's gradients


def attacks(run: Run, rule: Rule) -> Iterator[Finding]:
    """Yield each line that calls backward in a loop for an input's gradient, if a step uses the other gradients."""
    found: dict[Frame, dict[int, tuple[int, int]]] = defaultdict(dict)  # step: calls, and the training loss
    for _, site, windows in run.accumulating():
        for window, micro in windows:
            own = attacked_loss(run, window, micro)
            weighed = any(term.factors for number in micro for term in run.backward(number).terms)
            if own is not None and not weighed and reads_gradients(site, run.events[own].site):
                found[innermost(site)].setdefault(window.step, (len(micro), own))
    for line, steps in found.items():
        if len(steps) < _LEAST:
            continue
        step, (_, number) = next(iter(steps.items()))
        calls = Counter(size for size, _ in steps.values()).most_common(1)[0][0]
        optimizer, own = run.stepped(step).optimizer, innermost(run.events[number].site).line
        yield rule.finding(
            line,
            f"In {len(steps)} of {run.stepping[optimizer]} steps of {run.optimizer(optimizer)}, the gradients "
            f"include those of {calls} backward calls of an attack, in addition to the loss of line {own}.",
            why="The attack needs only the input's gradient, but its backward() also adds to the model's.",
            advice="Use torch.autograd.grad(loss, input) in the attack, or clear the model's gradients right "
            f"before line {own}.",
            severity="warning",
            count=len(steps),
            evidence={"backwards": calls, "training_line": own},
        )
