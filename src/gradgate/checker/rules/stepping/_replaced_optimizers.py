"""Finds optimizers that a line or a variable holds only until the next one is constructed, so they never step."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from gradgate.checker.analysis._gradient_reads import reads_gradients
from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._history import Contribution
from gradgate.checker.analysis._queries import loss_of, own_losses
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._source import inside, statement_at, tree_of
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, OptimizerMade

_LEAST = 3  # backward calls for each optimizer


def replaced_optimizers(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report several optimizers of one line or variable, all of which have losses, if only one of them steps."""
    if run.ended != "finished" or run.log.world > 1:
        return
    made = grouped((_assigned(event), event) for event in run.of(OptimizerMade) if not event.added)
    for several in made.values():
        kept = [event for event in several if run.stepping[event.optimizer]]
        idle = [event for event in several if event not in kept and _is_trained(run, event.optimizer)]
        held = union(run.held(event.optimizer) for event in idle)
        parts = [part for part in run.contributions if part.atom & held]
        if len(kept) != 1 or not idle or len(idle) + 1 < len(several) or are_read(run, parts, run.files):
            continue
        calls = len(run.calls_reaching(held))
        name = run.optimizer(kept[0].optimizer)
        sites = {innermost(event.site) for event in several}
        where = "This line" if len(sites) == 1 else f"`{name}`"
        makes = "constructs" if len(sites) == 1 else "is assigned"
        yield rule.finding(
            idle[0].site,
            f"{where} {makes} {len(several)} optimizers, but only one of them ever steps. The others hold "
            f"{run.names(held)}, which {calls} backward calls reach.",
            why="These parameters keep their initial values.",
            advice="Keep every optimizer, for example in a list, and call step() on the one that holds the "
            "parameters of each loss.",
            count=calls,
            evidence={"optimizers": len(several), "never_stepped": len(idle), "backward_calls": calls},
            about=held,
        )


def _assigned(made: OptimizerMade) -> tuple[str, str, str | int]:
    """Return the variable of an optimizer, with its file and function, or else its line."""
    frame = innermost(made.site)
    target = getattr(statement_at(frame), "targets", [None])[0]
    named = isinstance(target, (ast.Name, ast.Attribute))
    return frame.file, frame.function, ast.unparse(target) if named else frame.line


def _is_trained(run: Run, optimizer: int) -> bool:
    """Return whether losses of its own reach an optimizer's parameters, which never change."""
    held, own = run.held(optimizer), own_losses(run, optimizer)
    shared = any(run.owners[number] - {optimizer} for number in held)
    calls = [event for number, event in run.numbered(Backward) if event.reached & held]
    own_calls = sum(loss_of(run, number) in own for number, event in run.numbered(Backward))
    still = all(run.parameters[number].still for number in held & run.parameters.keys())
    return bool(held) and not shared and still and len(calls) >= _LEAST and own_calls >= _LEAST


def are_read(run: Run, parts: list[Contribution], files: Iterable[str]) -> bool:
    """Return whether the user's code, including hooks, reads gradients of parameters or other tensors."""
    calls = [(run.backward(part.backward), part.cleared) for part in parts if part.backward >= 0]
    sites = {(event.site, () if cleared is None else run.events[cleared].site) for event, cleared in calls}
    hooks = any("hook" in node.attr for node in inside(ast.Attribute, *map(tree_of, files)))
    return hooks or any(event.others for event, _ in calls) or any(reads_gradients(*pair) for pair in sites)
