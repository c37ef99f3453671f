"""Parameters that take part in the loss are in no optimizer.

## What it does
Looks for parameters that losses reach repeatedly, but that are in no optimizer and never change:

- layers in a plain list, which ``parameters()`` doesn't see;
- a module that was constructed or unfrozen after the optimizer, or was not passed to it;
- the parameters of a criterion, or layers that each forward pass builds again;
- a new layer, or low-rank adapters (LoRA) with a zero factor, that are frozen while other layers are trained.

## Why is this bad?
The parameters keep their initial values, and the rest of the model must adapt to them. The loss falls anyway.

## Example
    self.layers = [nn.Linear(64, 64) for _ in range(4)]       # a plain list
    optimizer = torch.optim.Adam(model.parameters())

## Use instead
    self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

or pass all parameters: ``Adam([*encoder.parameters(), *decoder.parameters()])``.

## Known limits
A network is assumed to be fixed on purpose if it is much larger than the trained part, in evaluation mode, or a
copy of a trained network. New layers that a line freezes by name are not reported. Nor are frozen adapters beside a
trained head, if a line might unfreeze them. If an optimizer changes tensors of data, the finding is a note.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from gradgate.checker.analysis._left_out import Left, left_out, optimizer_beside
from gradgate.checker.analysis._origins import comprehension_line, data_among, list_line, unlisted_group
from gradgate.checker.analysis._parameter_usage import temporary, unowned
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import (
    Scope,
    called,
    definitions,
    last_name,
    makes_leaf,
    scope_at,
    scopes_of,
)
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import function_at, inside, loops_around, statement_at, text_of
from gradgate.checker.rules._rule import Finding, FixAt, Rule
from gradgate.checker.rules.ownership._frozen_adapters import frozen_adapters, frozen_new_layers
from gradgate.checker.rules.ownership._parameter_fixes import (
    added,
    computed_first,
    in_module_list,
    made_parameter,
)
from gradgate.events import Backward, Frame, Ids, Parameter, Site

_LEAST = 3  # backward calls
_IN_A_CALL = ("forward", "__call__", "training_step")  # functions that run for every batch

# Why no optimizer has the parameters, what to write instead, and the edit
_REASONS: dict[str, tuple[str, str, FixAt | None]] = {
    "in a list": (
        "hidden from parameters() in a plain list",
        "Put the layers into an nn.ModuleList, or parameters into an nn.ParameterList.",
        in_module_list,
    ),
    "in a dict": (
        "hidden from parameters() in a plain dict",
        "Put the layers into an nn.ModuleDict, or parameters into an nn.ParameterDict.",
        None,
    ),
    "computed": (
        "only a plain tensor that was computed from it is stored",
        "Make the operation's result the parameter: nn.Parameter(torch.randn(3) * 0.02).",
        computed_first,
    ),
    "plain": (
        "a plain tensor, which parameters() leaves out",
        "Make the tensor a parameter: nn.Parameter(...).",
        made_parameter,
    ),
    "group": (
        "in a group that is built but not passed on",
        "Append this group to the list that {name} gets.",
        None,
    ),
    "unfrozen": (
        "unfrozen after {name} was made without them",
        "Pass these parameters to {name}, too, when it is constructed: an optimizer skips frozen parameters "
        "without gradients. Or add the parameters once where they are unfrozen: "
        "{name}.add_param_group({{'params': ...}}).",
        None,
    ),
    "later": (
        "made after {name}",
        "Construct the module before {name}, or add its parameters here: "
        "{name}.add_param_group({{'params': ...}}).",
        None,
    ),
    "in a subclass": (
        "made after {name}, which the base class's __init__ creates",
        "{others} creates {name} before these layers exist. Create it after super().__init__() and the layers, "
        "or add their parameters here: {name}.add_param_group({{'params': ...}}).",
        None,
    ),
    "in a call": (
        "made after {name}",
        "Build the layer once, in __init__, and call it in forward: here each call builds a new layer with new "
        "random values.",
        None,
    ),
    "data": (
        "in no optimizer's list",
        "Pass {name} all parameters that should be trained, but not {others}: these tensors hold data, and {name} "
        "changes them.",
        None,
    ),
    "in a loop": (
        "made after {name}, and again in each pass of a loop",
        "Build the module once, before {name} and outside of the loop, and pass {name} its parameters, too. Here "
        "each pass builds a new module with new random values.",
        None,
    ),
    "unlisted": ("in no optimizer's list", "Pass {name} all parameters that should be trained.", None),
}


def _judge(run: Run) -> Iterator[Finding]:
    yield from (anew := [*_built_anew(run)])
    yield from (*frozen_adapters(run, RULE), *frozen_new_layers(run, RULE))
    together: dict[tuple[Frame, str, str, str], Ids] = defaultdict(frozenset)
    for left in left_out(run):
        if left.forgotten:
            optimizer = optimizer_beside(run, left)
            reason = _reason(run, left, optimizer)
            frame = _line(run, left, optimizer, reason)
            reason = "in a call" if reason == "later" and frame.function in _IN_A_CALL else reason
            reason = "in a loop" if reason == "later" and _is_rebuilt(run, left.ids) else reason
            others = _in_base_class(run.made[optimizer][0].site, frame) if reason == "later" else ""
            reason = "in a subclass" if others else reason
            if reason == "unlisted" and (data := data_among(run.log, run.held(optimizer))):
                reason, others = "data", run.names(data)
            if all((each.file, each.line) != frame[:2] for each in anew):
                together[frame, run.optimizer(optimizer), reason, others] |= left.ids
    for (frame, name, reason, others), ids in together.items():
        since = max((n for owner in run.optimizers_of(ids) for n in run.steps(owner)), default=-1)
        times = sum(bool(ids & event.reached) for n, event in run.numbered(Backward) if n > since)
        text, advice, fix = _REASONS[reason]
        if reason == "unlisted":
            fix = partial(added, names=[run.name(number) for number in ids])
        named = frozenset({run.name(number): number for number in ids}.values())  # a loop repeats the names
        earlier = bool(ids & run.owned)  # trained by an optimizer that no longer steps
        # In the later phase, the graphs of only a few calls are read.
        of, calls = (f" of {name}", "later") if earlier else ("", f"{times}")
        yield RULE.finding(
            frame,
            f"No step{of} changed {run.names(named)} ({text.format(name=name)}), although {calls} backward calls "
            f"computed gradients for {'them' if len(ids) > 1 else 'it'}.",
            why="These parameters keep the values of the earlier training."
            if earlier
            else "These parameters keep their initial values, and the rest of the model must adapt.",
            advice=advice.format(name=name, others=others),
            fix=fix or (),
            count=times,
            evidence={"parameters": len(ids), "backwards": times},
            about=ids,
        )


def _built_anew(run: Run) -> Iterator[Finding]:
    """Report untrained layers that a line builds again for each backward call of a trained model."""
    groups: dict[Frame, set[int]] = defaultdict(set)
    for number in temporary(run, [run.parameters[number] for number in unowned(run)]):
        parameter = run.parameters[number]
        frame = next((frame for frame in parameter.made if frame.function != "__init__"), None)
        if frame is not None and parameter.still and parameter.trainable and _builds_layer(frame):
            groups[frame].add(number)
    for frame, ids in groups.items():
        calls = run.calls_reaching(frozenset(ids))
        if len(calls) < _LEAST or not any(event.reached & run.owned for event in calls):
            continue
        yield RULE.finding(
            frame,
            f"This line builds a new layer in each iteration: {len(ids)} parameters received gradients in "
            f"{len(calls)} backward calls, each parameter in only one call, and no step changed any of them.",
            why="The layer has new random values each time: it learns nothing, and the model can't adapt to it.",
            advice="Build the layer once, in __init__ or before the optimizer, which needs its parameters. Only "
            "call it here. If it is random on purpose, freeze it: requires_grad_(False).",
            severity="warning",
            count=len(calls),
            evidence={"parameters": len(ids), "backwards": len(calls)},
            about=ids,
        )


def _builds_layer(frame: Frame) -> bool:
    """Return whether a line constructs an object that isn't a bare parameter: nn.Linear(8, 2)."""
    names = [called(call) for call in inside(ast.Call, statement_at(frame))]
    return any(name[:1].isupper() for name in names) and "Parameter" not in names


def _reason(run: Run, left: Left, optimizer: int) -> str:
    if left.plain and _is_loose(run, left):
        return "plain"
    if (left.plain or not left.listed) and not _is_loose(run, left):
        several = [run.parameters[number] for number in left.ids]
        if all(map(_is_computed, several)):
            return "computed"
        return "in a dict" if all("['" in each.name + each.root for each in several) else "in a list"
    if left.unfrozen is not None:
        return "unfrozen"
    if left.later:
        return "later"
    return "unlisted" if unlisted_group(run.made[optimizer][0].site) is None else "group"


def _in_base_class(made: Site, layer: Frame) -> str:
    """Return "Line 9, called in line 20," if a base class makes the optimizer there, before the layer is made."""
    for frame in made[1:]:
        if frame[::2] == layer[::2] and frame.line < layer.line and "__init__(" in text_of(frame):
            file = "" if made[0].file == layer.file else f" of {Path(made[0].file).name}"
            return f"Line {made[0].line}{file}, called in line {frame.line},"
    return ""


def _line(run: Run, left: Left, optimizer: int, reason: str) -> Frame:
    first = min((run.parameters[number] for number in left.ids), key=lambda parameter: parameter.made_at)
    made: Site = run.made[optimizer][0].site
    if left.unfrozen is not None:
        return left.unfrozen
    attribute = first.name.partition("[")[0].rpartition(".")[2]
    if not left.listed and "[" in first.name:  # "experts" of model.experts[0].weight
        frame = _assigned_at(attribute, filter(None, map(scope_at, first.made)))
        if frame is not None:
            return frame
    if left.plain:
        scopes = (scope for file in files_of([made, left.backward]) for scope in scopes_of(file))
        return _assigned_at(attribute, scopes) or innermost(made)
    if first.made and reason not in ("unlisted", "group"):
        return _beside(first.made, made, run.optimizer(optimizer)) if reason == "later" else first.made[0]
    return unlisted_group(made) or comprehension_line(made) or list_line(made) or innermost(made)


def _beside(layer: Site, optimizer: Site, name: str) -> Frame:
    """Return the line that builds a layer's object, outside of its class, where the optimizer can be used."""
    for place, frame in enumerate(layer if layer[0].function == "__init__" else ()):
        callers = [
            other[::2] for at, other in enumerate(optimizer) if optimizer[at + 1 :] == layer[place + 1 :]
        ]
        names = map(last_name, inside(ast.AST, function_at(frame)))
        if frame[::2] in callers or frame.function in _IN_A_CALL or name.rpartition(".")[2] in names:
            return frame
    return layer[0]


def _is_rebuilt(run: Run, ids: Ids) -> bool:
    """Return whether a variable holds one module after another, all built by the same line."""
    several = [run.parameters[number] for number in ids]
    made, names = {each.made for each in several}, {each.name for each in several} - {""}
    in_loop = all(any(map(loops_around, site)) for site in made)
    return in_loop and len(made) <= len(names) < len(several)


def _is_loose(run: Run, left: Left) -> bool:
    """Return whether the parameters are attributes or variables, not entries of a list or dict."""
    several = [run.parameters[number] for number in left.ids]
    return all(each.name and "[" not in each.name + each.root for each in several)


def _is_computed(parameter: Parameter) -> bool:
    """Return whether a line assigns a value computed from a parameter that it makes: ``Parameter(x).to(d)``."""
    value = getattr(statement_at(parameter.made[0]), "value", None) if parameter.made else None
    whole = value.func if isinstance(value, ast.Call) else value
    inner = inside(ast.Call, whole) if isinstance(whole, (ast.Attribute, ast.BinOp)) else ()
    return any(called(call) == "Parameter" for call in inner)


def _assigned_at(attribute: str, scopes: Iterable[Scope]) -> Frame | None:
    """Return the only line of these functions that assigns an attribute, such as a plain list of layers."""
    values = [
        (scope.file, each.value)
        for scope in scopes
        for each in definitions(scope).get(f".{attribute}", ())
        if each.whole
    ]
    # A module may have the name of its tensor.
    leaves = [each for each in values if any(map(makes_leaf, inside(ast.Call, each[1])))]
    lines = {Frame(file, value.lineno, "") for file, value in leaves or values}
    return lines.pop() if len(lines) == 1 else None


RULE = Rule("GG501", "param-not-in-optimizer", "error", __doc__ or "", _judge)
