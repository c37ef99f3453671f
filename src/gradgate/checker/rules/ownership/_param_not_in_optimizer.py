"""Parameters that take part in the loss are in no optimizer.

## What it does
Looks for parameters that losses reach again and again, that are in no optimizer and never change: layers in a plain
list, which ``parameters()`` does not see; a module made after the optimizer, or not handed to it; the parameters of
a criterion.

## Why is this bad?
They stay at their random start, and the rest has to make do with it. The loss falls all the same.

## Example
    self.layers = [nn.Linear(64, 64) for _ in range(4)]       # a plain list
    optimizer = torch.optim.Adam(model.parameters())

## Use instead
    self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

or hand over all of them: ``Adam([*encoder.parameters(), *decoder.parameters()])``.

## Known limits
A network that is much larger than what is trained, is in evaluation mode, or is a copy of one that is trained, is
taken to be fixed on purpose: see wasted-gradient.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradgate.checker.analysis._origins import comprehension_line, list_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import definitions, scope_at
from gradgate.checker.analysis._unused_gradients import Left, left_out
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import Backward, Frame, Ids, OptimizerMade, Parameter, Site, Stepped


def _judge(run: Run) -> Iterator[Finding]:
    together: dict[tuple[Frame | Site, str, str], Ids] = {}
    for left in left_out(run):
        if not left.forgotten:
            continue
        optimizer = _optimizer(run, left)
        name = run.optimizer(optimizer)
        if not left.listed and not _loose(run, left):
            reason = "hidden from parameters() in a plain list"
            fix = "Put the layers into an nn.ModuleList, or parameters into an nn.ParameterList."
        elif left.later:
            reason = f"made after {name}"
            fix = f"Add what is made here to the optimizer: {name}.add_param_group({{'params': ...}})."
        else:
            reason, fix = "in no optimizer's list", f"Hand {name} all that is to be trained."
        key = (_line(run, left, optimizer), reason, fix)
        together[key] = together.get(key, frozenset()) | left.ids
    for (where, reason, fix), ids in together.items():
        times = sum(bool(ids & event.reached) for event in run.of(Backward))
        yield RULE.finding(
            where,
            f"No step moved {run.names(ids)}, {reason}, though {times} backward calls reached "
            f"{'them' if len(ids) > 1 else 'it'}.",
            why="What is left out stays as it was drawn, and the rest has to make do with that.",
            advice=fix,
            count=times,
            evidence={"parameters": len(ids), "backwards": times},
        )


def _optimizer(run: Run, left: Left) -> int:
    """Return the optimizer that uses the rest of the same losses."""
    reached = frozenset().union(*(event.reached for event in run.of(Backward) if event.site == left.backward))
    using: list[int] = [event.optimizer for event in run.of(Stepped) if event.used & reached]
    return max(set(using), key=using.count)


def _line(run: Run, left: Left, optimizer: int) -> Frame | Site:
    first = min((run.parameters[number] for number in left.ids), key=lambda one: one.made_at)
    if not left.listed and first.made and (frame := _plain_list(first)) is not None:
        return frame
    if (left.later or not (left.listed or _loose(run, left))) and first.made:
        return first.made[0]
    made: OptimizerMade = run.made[optimizer][0]
    return comprehension_line(made.site) or list_line(made.site) or made.site


def _loose(run: Run, left: Left) -> bool:
    """Say whether they are held by names alone, and in no list or dict."""
    several = [run.parameters[number] for number in left.ids]
    return all(one.name and "[" not in one.name + one.root for one in several)


def _plain_list(one: Parameter) -> Frame | None:
    """Return the line that puts layers into a plain list or dict: "experts" of model.experts[0].weight."""
    attribute = one.name.partition("[")[0].rpartition(".")[2] if "[" in one.name else ""
    lines = {
        Frame(scope.file, node.value.lineno, "")
        for scope in (scope_at(frame) for frame in one.made)
        if scope is not None and attribute
        for node in definitions(scope).get("." + attribute, ())
        if node.whole
    }
    return next(iter(lines)) if len(lines) == 1 else None


RULE = Rule("GG501", "param-not-in-optimizer", "error", __doc__ or "", _judge)
