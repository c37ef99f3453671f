"""Finds sharpness-aware minimization that doesn't clear: each step adds up the gradients at two sets of weights."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import root_of
from gradgate.checker.analysis._source import whole_text
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Ids, Site, Written

_LEAST = 3  # steps
_MOST_MOVED = 0.9  # adversarial training perturbs the embedding only, and adds up the gradients on purpose
_ATTACK = re.compile(r"(?i)\bfgm|\bfgsm|\bpgd|attack|adversar")


def perturbed_weights(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report steps that add the gradient before the perturbation to the gradient at the perturbed weights."""
    found: dict[tuple[int, Site, Site], list[Ids]] = defaultdict(list)
    for window in run.windows:
        for first, second in zip(window.micro, window.micro[1:], strict=False):
            ids = _moved_up(run, window, first, second)
            if ids:
                key = window.optimizer, run.backward(first).site, run.backward(second).site
                found[key].append(ids)
    for (_, first_site, second_site), several in found.items():
        files = {frame.file for frame in second_site}
        if len(several) < _LEAST or any(_ATTACK.search(whole_text(file)) for file in files):
            continue
        every: Ids = frozenset().union(*several)
        yield rule.finding(
            second_site,
            f"The gradient of line {innermost(first_site).line} perturbs the weights, and this backward() adds to "
            f"this gradient: {len(several)} steps use the sum of both.",
            why="Sharpness-aware minimization steps only with the gradient at the perturbed weights.",
            advice="Clear the gradients after perturbing the weights, before this backward().",
            fix=_cleared_before if first_site != second_site else (),
            count=len(several),
            evidence={"steps": len(several), "parameters": len(every)},
            about=every,
        )


def _moved_up(run: Run, window: StepWindow, first: int, second: int) -> Ids:
    """Return the parameters perturbed along their gradient between two backward calls, if almost all were."""
    stepped = window.parameters
    both = [
        frozenset[int]().union(*(each.atom for each in window.fresh if each.backward == number))
        for number in (first, second)
    ]
    if any(each.touched or each.factor != 1 for each in window.fresh) or not _weigh_the_same(
        run, first, second
    ):
        return frozenset()
    moved: set[int] = set()
    for event in run.events[first + 1 : second]:
        if isinstance(event, Written) and event.target == "value":
            moved |= event.parameters if event.up_gradient else frozenset()
    ids = both[0] & both[1] & moved
    return ids if len(ids) >= _MOST_MOVED * len(stepped) else frozenset()


def _weigh_the_same(run: Run, first: int, second: int) -> bool:
    """Return whether both losses have the same weight, and don't form an average."""
    weights = [sum(abs(term.weight) for term in run.terms(number)) for number in (first, second)]
    return weights[0] > 0 and math.isclose(*weights, rel_tol=1e-3) and not math.isclose(sum(weights), 1)


# The fix


def _cleared_before(at: Statement) -> Fix:
    """Clear before the backward call, with the optimizer of the next step in its block."""
    for step in at.block[at.block.index(at.node) + 1 :]:
        calls = [call for call in Statement(at.file, step, at.block, at.path).calls() if _steps(call.func)]
        if calls:
            name = root_of(calls[0].func)
            return (
                (Insert(f"{name}.zero_grad()", before=at.line),) if at.knows(name) and name != "self" else ()
            )
    return ()


def _steps(function: object) -> bool:
    return getattr(function, "attr", "") in ("step", "second_step")
