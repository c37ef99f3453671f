"""The lives of parameters: who holds them, which losses reach them, and which newer ones took their place."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._parameter_usage import misdirected, replaced, temporary, unowned
from gradgate.checker.analysis._run import Run, innermost, once
from gradgate.events import Backward, Ids, ModeSet, OptimizerMade, Parameter, Site, Stepped

Why: TypeAlias = Literal["hidden", "plain", "later", "unfrozen", "unlisted", "fixed"]
"""Why no optimizer holds parameters; "fixed" if it may be on purpose."""

_LATE = 3  # calls of a line without the parameters: fewer may be a warm-up of the script's own
_LARGER = 4  # a part this many times larger than what is trained is a pretrained network, not one forgotten


@dataclass(frozen=True)
class Unheld:
    """Parameters of one module that a line's losses reach, that no optimizer holds and nothing changes."""

    ids: Ids
    backward: Site
    optimizer: int  # which holds the other parameters of these losses
    why: Why


@once
def unheld(run: Run) -> list[Unheld]:
    """Return the parameters that losses reach again and again while no optimizer holds them, module by module."""
    free = unowned(run)
    # Newer parameters in the place of others, those of an optimizer's wrong list, and those made in each pass
    known: set[int] = set(temporary(run, [run.parameters[number] for number in free]))
    known = known.union(*(swap.new for swap in replaced(run)), *(misdirected(run, each) for each in run.made))
    entries = []
    for site, reached in _trained_lines(run).items():
        modules: dict[str, list[Parameter]] = defaultdict(list)
        for parameter in (run.parameters[number] for number in (reached & free) - known):
            if is_hidden_tensor(run, parameter):
                modules["." + parameter.name.partition("[")[0]].append(parameter)
            elif parameter.registered or parameter.made or parameter.name or parameter.id in _combined(run):
                modules[parameter.root.split("[")[0]].append(parameter)
        for parameters in modules.values():
            ids = frozenset(parameter.id for parameter in parameters)
            known |= ids
            beside = [run.parameters[number] for number in reached & run.owned]
            # Parameters that change are an average or a target network, or are trained by hand
            still = all(parameter.still for parameter in parameters)
            why = _why(run, parameters, site, beside) if still else "fixed"
            if still or _is_copy(run, parameters):
                entries.append(Unheld(ids, site, _optimizer_of(run, site), why))
    return entries


def is_hidden_tensor(run: Run, parameter: Parameter) -> bool:
    """Return whether a plain tensor is an attribute of a trained module, where ``parameters()`` skips it."""
    holder = parameter.name.partition("[")[0].rpartition(".")[0]
    if parameter.registered or parameter.made or parameter.root or not holder:
        return False
    # A module may hold nothing but such tensors, and several variables may know it
    paths = [f".{path}." for path in (holder, holder.rpartition(".")[0], holder.partition(".")[2]) if path]
    names = [f".{run.name(number)}" for number in run.owned & run.reached]
    return any(path in name for path in paths for name in names)


@once
def _combined(run: Run) -> Ids:
    """Return the parameters that were combined with values of an optimizer's parameters."""
    return union(event.beyond for event in run.of(Backward))


def _trained_lines(run: Run) -> dict[Site, Ids]:
    """Return the lines whose gradients a step used, and the parameters that each line reaches more than once."""
    often = Counter(number for event in run.of(Backward) for number in event.reached - run.owned)
    lines: dict[Site, Ids] = defaultdict(frozenset)
    used = {
        innermost(run.backward(n).site)
        for n, parts in run.by_backward.items()
        if n >= 0 and any(p.consumed for p in parts)
    }
    for event in run.of(Backward):
        if event.site and event.site[0] in used:
            lines[event.site] |= event.reached
    return {site: frozenset(number for number in ids if often[number] != 1) for site, ids in lines.items()}


def _optimizer_of(run: Run, site: Site) -> int:
    """Return the optimizer that most often steps with the gradients of a line."""
    reached = union(event.reached for event in run.calls_at(site))
    using = Counter(event.optimizer for event in run.of(Stepped) if event.used & reached)
    return using.most_common(1)[0][0] if using else min(run.made)


def _why(run: Run, parameters: list[Parameter], site: Site, beside: list[Parameter]) -> Why:
    ids = frozenset(parameter.id for parameter in parameters)
    modes = [event for event in run.of(ModeSet) if event.parameters & ids]
    if modes and not modes[-1].training and modes[-1].parameters <= ids:
        return "fixed"  # in evaluation mode
    if is_hidden_tensor(run, parameters[0]) or not any(
        parameter.registered or parameter.made or "." not in parameter.name for parameter in parameters
    ):
        return "plain"
    roots = {parameter.root for parameter in beside}
    lists = {parameter.root for parameter in parameters if "[" in parameter.root}
    inside = any(f"{place.split('[')[0]}.".startswith(f"{root}.") for place in lists for root in roots)
    if len(lists) > 1 and inside:  # "model.layers[0]", "model.layers[1]": no module holds the list
        return "hidden"
    listed = any("[" in parameter.name + parameter.root for parameter in parameters)
    if listed and all(parameter.made and not parameter.registered for parameter in parameters):
        return "hidden"
    if any(parameter.copied for parameter in parameters) or run.written_to(ids):
        return "fixed"  # a target network or an average
    last = max(number for number, _ in run.numbered(OptimizerMade))
    if all(parameter.made_at > last for parameter in parameters):
        return "later"
    alone = any(event.reached <= ids and not event.others for event in run.calls_reaching(ids))
    if _is_copy(run, parameters):
        return "unlisted" if alone else "fixed"  # a loss of its own trains it
    calls = [event for event in run.of(Backward) if event.seen and event.site[:1] == site[:1]]
    reaching = [bool(event.reached & ids) for event in calls]
    first = reaching.index(True) if True in reaching else 0
    if first >= _LATE and all(reaching[first:]):
        return "unfrozen"
    size, trained = (sum(parameter.nbytes for parameter in each) for each in (parameters, beside))
    part = parameters[0].root in roots
    if size >= _LARGER * trained:
        return "fixed"
    forgotten = bool(_combined(run) & ids) or (part and size < trained) or size * 2 < trained
    return "unlisted" if forgotten else "fixed"


def _is_copy(run: Run, parameters: list[Parameter]) -> bool:
    """Return whether a trained module has the same shapes: this one is a target network or an average."""
    if len(parameters) < 2:
        return False
    modules: dict[object, list[tuple[int, ...]]] = defaultdict(list)
    own = {_part(parameter) for parameter in parameters}
    for parameter in (run.parameters[number] for number in run.owned & run.reached):
        part = _part(parameter)
        module = (parameter.root, part if parameter.root == parameters[0].root else "")
        if not (parameter.root == parameters[0].root and (not part or part in own)):
            modules[module].append(parameter.shape)
    return sorted(parameter.shape for parameter in parameters) in map(sorted, modules.values())


def _part(parameter: Parameter) -> str:
    """Return the part of its model that a parameter belongs to: "target" of "agent.target.weight"."""
    return parameter.name.split(".")[1] if parameter.name.count(".") > 1 else ""
