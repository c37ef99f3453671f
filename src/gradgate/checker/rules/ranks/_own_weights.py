"""Ranks that average gradients of models that began with different values: seen from all ranks' runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.checker.rules.ranks._rank_means import averaged
from gradgate.events import Parameter, Site

_LEAST = 3  # steps


def own_weights(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    """Report parameters whose gradients are averaged over ranks, and which did not begin with the same values."""
    first = runs[0]
    windows = [window for window in first.windows if averaged(first, window)]
    if len(windows) < _LEAST:
        return
    shared = frozenset[int]().union(*(window.parameters for window in windows))
    differing = [
        number
        for number in sorted(shared)
        if _differ([run.parameters[number] for run in runs if number in run.parameters], len(runs))
    ]
    if not differing:
        return
    made = [event for event in first.made[windows[0].optimizer] if not event.added]
    site: Site = next((first.parameters[n].made for n in differing if first.parameters[n].made), ())
    site = site or (made[0].site if made else first.backward(windows[0].micro[-1]).site)
    yield rule.finding(
        site,
        f"{first.names(differing)} did not begin with the same values on {len(runs)} ranks, whose gradients are "
        f"averaged in {len(windows)} steps.",
        why="Each rank adds the same mean gradient to weights of its own: they stay different models, and the mean "
        "belongs to none of them.",
        advice="Give all ranks the first one's values before training: DistributedDataParallel does; by hand, "
        "dist.broadcast(parameter.detach(), src=0) for each. Or seed the model alike, and only the data by rank.",
        severity="error",
        count=len(windows),
        evidence={"parameters": len(differing), "ranks": len(runs), "steps": len(windows)},
    )


def _differ(parameters: Sequence[Parameter], ranks: int) -> bool:
    """Say whether a parameter is the same one on all ranks, by its name and shape, and began differently."""
    if len(parameters) < ranks or len({(one.name, one.shape) for one in parameters}) > 1:
        return False
    began = [one.began for one in parameters if one.began is not None]
    return len(began) == ranks and max(began) - min(began) > 1e-6 * max(began)
