"""Parameters that take part in the loss are in no optimizer.

## What it does
Looks for parameters that losses reach again and again, but that no optimizer holds and nothing changes:

- layers or tensors in a plain list, dict or attribute, which ``parameters()`` doesn't see;
- a module that was constructed or unfrozen after the optimizer, or was not passed to it;
- layers that each forward pass builds again.

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
copy of a trained network. New layers and adapters (LoRA) that are frozen get no gradient, and are not reported.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._lives import Unheld, unheld
from gradgate.checker.analysis._origins import list_line, unfreezing_line
from gradgate.checker.analysis._parameter_usage import temporary, unowned
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called, definitions, makes_leaf, scopes_of
from gradgate.checker.analysis._source import files_of, inside, statement_at
from gradgate.checker.rules._rule import Finding, FixAt, Rule, Text
from gradgate.checker.rules.ownership._parameter_fixes import in_module_list, made_parameter
from gradgate.checker.rules.texts import ownership as texts
from gradgate.events import Frame, Ids

_LEAST = 3  # backward calls: what happens once or twice may be a check of the script's own
_IN_A_CALL = ("forward", "__call__", "training_step")  # functions that run for every batch

# For each reason: the words, the text, and the edit
_REASONS: dict[str, tuple[str, Text, FixAt | None]] = {
    "hidden": ("hidden from parameters() in a plain list or dict", texts.HIDDEN, in_module_list),
    "plain": ("a plain tensor, which parameters() leaves out", texts.PLAIN, made_parameter),
    "later": ("made after {optimizer}", texts.MADE_LATER, None),
    "unfrozen": ("unfrozen after {optimizer} was made without them", texts.UNFROZEN, None),
    "unlisted": ("in no optimizer's list", texts.UNLISTED, None),
}


def _judge(run: Run) -> Iterator[Finding]:
    together: dict[tuple[Frame, str, str], Ids] = defaultdict(frozenset)
    for entry in unheld(run):
        if entry.why != "fixed":
            together[_line(run, entry), run.optimizer(entry.optimizer), entry.why] |= entry.ids
    for (frame, optimizer, why), ids in together.items():
        backwards = len(run.calls_reaching(ids))
        reason, text, fix = _REASONS[why]
        yield RULE.say(
            frame,
            text,
            fix=fix or (),
            count=backwards,
            about=ids,
            names=run.names(frozenset({run.name(number): number for number in ids}.values())),
            reason=reason.format(optimizer=optimizer),
            them="them" if len(ids) > 1 else "it",
            optimizer=optimizer,
            parameters=len(ids),
            backwards=backwards,
        )
    groups: dict[Frame, set[int]] = defaultdict(set)
    for number in temporary(run, [run.parameters[number] for number in unowned(run)]):
        parameter = run.parameters[number]
        place = next((frame for frame in parameter.made if frame.function != "__init__"), None)
        if place is not None and parameter.still and parameter.trainable and _builds_layer(place):
            groups[place].add(number)
    for frame, numbers in groups.items():
        ids = frozenset(numbers)
        calls = run.calls_reaching(ids)
        if len(calls) >= _LEAST and any(event.reached & run.owned for event in calls):
            yield RULE.say(
                frame,
                texts.BUILT_ANEW,
                severity="warning",
                count=len(calls),
                about=ids,
                parameters=len(ids),
                backwards=len(calls),
            )


def _builds_layer(frame: Frame) -> bool:
    """Return whether a line constructs an object that isn't a bare parameter: nn.Linear(8, 2)."""
    names = [called(call) for call in inside(ast.Call, statement_at(frame))]
    return any(name[:1].isupper() for name in names) and "Parameter" not in names


def _line(run: Run, entry: Unheld) -> Frame:
    """Return the line to change: where the parameters are made or unfrozen, or the optimizer's list is built."""
    first = min((run.parameters[number] for number in entry.ids), key=lambda parameter: parameter.made_at)
    made = run.made[entry.optimizer][0].site
    files = files_of([made, entry.backward])
    listed = list_line(made) or innermost(made)
    if entry.why == "unfrozen":
        names = {part for n in entry.ids for part in run.name(n).split(".")[:-1] if not part.isdigit()}
        return unfreezing_line(files, names) or listed
    if entry.why in ("hidden", "plain"):
        attribute = first.name.partition("[")[0].rpartition(".")[2]
        return _assigned_at(attribute, files) or (first.made[0] if first.made else listed)
    if entry.why == "later" and first.made:
        # Outside of the layer's own class: the line beside the optimizer's, or one that runs for every batch
        layer = first.made if first.made[0].function == "__init__" else ()
        callers = [made[place:] for place in range(1, len(made) + 1)]
        places = (
            frame
            for place, frame in enumerate(layer)
            if layer[place + 1 :] in callers or frame.function in _IN_A_CALL
        )
        return next(places, first.made[0])
    return listed


def _assigned_at(attribute: str, files: tuple[str, ...]) -> Frame | None:
    """Return the only line of these files that assigns an attribute, such as a plain list of layers."""
    values = [
        (scope.file, each.value)
        for file in files
        for scope in scopes_of(file)
        for each in definitions(scope).get(f".{attribute}", ())
        if each.whole
    ]
    leaves = [each for each in values if any(map(makes_leaf, inside(ast.Call, each[1])))]
    lines = {Frame(file, value.lineno, "") for file, value in leaves or values}
    return lines.pop() if len(lines) == 1 else None


RULE = Rule("GG501", "param-not-in-optimizer", "error", __doc__ or "", _judge)
