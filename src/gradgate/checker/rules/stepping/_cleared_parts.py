"""Finds networks whose optimizer clears all their gradients, because only another optimizer's loss reaches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gradgate.checker.analysis._gradient_reads import reads_gradients
from gradgate.checker.analysis._parameter_usage import cleared_unused
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.rules._rule import Finding, Rule


def cleared_parts(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report each optimizer that holds a network and clears its gradients before every step."""
    for optimizer, ids in cleared_unused(run).items():
        lost = [part for part in run.contributions if part.atom & ids and part.cleared is not None]
        calls = {part.backward for part in lost}
        ends = {(run.events[part.backward].site, run.events[part.cleared or 0].site) for part in lost}
        if any(reads_gradients(*pair) for pair in ends):
            continue
        beside = (part for number in calls for part in run.by_backward[number])
        steps = Counter(run.stepped(step).optimizer for part in beside for step in part.consumed)
        name, names = run.optimizer(optimizer), run.names(ids)
        where = innermost(run.events[min(calls)].site)
        other = run.optimizer(steps.most_common(1)[0][0])
        yield rule.finding(
            run.made[optimizer][0].site,
            f"None of {run.stepping[optimizer]} steps of {name} moved {names}: {name}'s losses "
            f"don't reach {'them' if len(ids) > 1 else 'it'}, and {name} clears the gradients that {len(calls)} "
            f"backward calls in line {where.line} compute.",
            why="The network keeps its initial values, although a loss computes gradients for it.",
            advice=(
                f"Pass these parameters to {other}, which steps after that loss. If {name} should train them, its "
                "own loss must use them without detach()."
            ),
            severity="warning",
            count=run.stepping[optimizer],
            evidence={"steps": run.stepping[optimizer], "backwards": len(calls), "parameters": len(ids)},
            about=ids,
        )
