"""The optimizer holds parameters that the model no longer uses.

## What it does
Looks for an optimizer whose parameters no longer get a gradient, while newer parameters outside the optimizer do.
Examples are a replaced head, a model that was built or copied again, and a parameter that was wrapped again. Also
looks for tensors that a loop makes anew (latent codes of a batch) while the optimizer holds only the first of them,
and for lines that bind the name of an optimizer's tensor to a new tensor (``self.w = self.w.detach().clamp(0)``).

## Why is this bad?
The new parameters are never updated. No error is raised, and the loss may even fall because other layers still
learn.

## Example
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model.fc = nn.Linear(512, 10)                        # the optimizer still holds the old layer

## Use instead
    model.fc = nn.Linear(512, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

or change the values in place: ``model.load_state_dict(best)``, ``with torch.no_grad(): weight.copy_(new)``.

## Known limits
New parameters that are updated by hand are assumed to be intended. A tensor that a loop makes anew is found only if
the function that constructs the optimizer also made the first one, under the same name.

## Sources
docs.pytorch.org/docs/stable/optim.html, "Constructing it": move a model to its device before constructing the
optimizer.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._origins import list_line
from gradgate.checker.analysis._parameter_usage import rebound, replaced, unreached
from gradgate.checker.analysis._queries import made_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, definitions, functions, makes_leaf, names_read, scope_at
from gradgate.checker.analysis._source import inside, text_of
from gradgate.checker.analysis._statement import Statement, method, operand
from gradgate.checker.fixes import Delete, Fix, Insert, Move
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, Parameter, Site


def _judge(run: Run) -> Iterator[Finding]:
    for swap in replaced(run):
        new = [run.parameters[number] for number in swap.new]
        old = [run.parameters[number] for number in swap.old]
        first = min(new, key=lambda parameter: parameter.made_at)
        optimizer = run.optimizer(swap.optimizer)
        line = _swapping_line(first, old, run.made[swap.optimizer][0].site)
        names = _as_written(run.names(swap.new), [parameter.name for parameter in new], line)
        yield RULE.finding(
            line,
            f"{names} {'was' if len(new) == 1 else 'were'} made after {optimizer}, which still "
            f"holds {len(old)} parameter{'s' if len(old) > 1 else ''} that losses no longer reach. "
            f"{swap.steps} of its steps left the new parameter{'s' if len(new) > 1 else ''} unchanged.",
            why="The optimizer does not update the parameters that get gradients.",
            advice=_advice(
                optimizer, new, old, listed=list_line(run.made[swap.optimizer][0].site) is not None
            ),
            fix=partial(_fix, names=[parameter.name for parameter in new], optimizer=optimizer),
            count=swap.steps,
            evidence={"new": len(new), "old": len(old), "steps": swap.steps},
        )
    yield from _remade(run)
    yield from _rebound(run)


def _as_written(text: str, names: list[str], line: Frame) -> str:
    """Return a text with the name of a model that the line assigns to: "net.fc.weight" where a line sets net.fc."""
    at = Statement.at(line)
    for target in at.node.targets if at is not None and isinstance(at.node, ast.Assign) else ():
        written = ast.unparse(target).removeprefix("self.")
        _, dot, path = written.partition(".")
        for root, _, rest in (name.partition(".") for name in names):
            if dot and f"{rest}.".startswith(f"{path}."):
                old, new = re.escape(f"{root}.{path}"), written.replace("\\", r"\\")
                return re.sub(rf"(?<![\w.]){old}(?!\w)", new, text)
    return text


def _swapping_line(first: Parameter, old: list[Parameter], made: Site) -> Frame:
    """Return the line that made new parameters, or the line that calls a function which returns their model.

    In the second case, the caller constructs the optimizer, so the function can't construct it.
    """
    line = made_line(first, old)
    at = Statement.at(line)
    name = ast.unparse(at.node.targets[0]) if at is not None and isinstance(at.node, ast.Assign) else ""
    shared = {frame[::2] for frame in made}
    outer = first.made[first.made.index(line) + 1 :]
    if at is None or not name or line[::2] in shared or not outer or outer[0][::2] not in shared:
        return line
    gives = any(ast.unparse(node.value) == name for node in inside(ast.Return, at.function) if node.value)
    return outer[0] if gives else line


def _rebound(run: Run) -> Iterator[Finding]:
    """Yield the lines that bind the name of an optimizer's tensor to a new tensor."""
    for each in rebound(run):
        optimizer, name = run.optimizer(each.optimizer), run.name(each.old)
        become = "a constant" if each.constant else "a new tensor"
        reached = "neither" if each.constant else "only the new one, which no step changes"
        yield RULE.finding(
            each.line,
            f"`{each.target}` becomes {become} here, but {optimizer} holds the old {name}. {each.calls} backward "
            f"calls since then reached {reached}.",
            why="The optimizer does not update the tensor that the loss uses.",
            advice=(
                f"Write into the tensor that {optimizer} holds: {each.target}.copy_(...) under torch.no_grad()."
            ),
            count=each.calls,
            evidence={"new": 1, "old": 1, "backwards": each.calls},
            about=each.new | {each.old},
        )


def _remade(run: Run) -> Iterator[Finding]:
    """Report a new tensor under the name of an older one, if an optimizer holds the older one."""
    losses = [event for event in run.of(Backward) if event.seen]
    if not all(event.others and event.reached & run.owned for event in losses):
        return
    # A plain tensor that no variable holds any more.
    lost = [
        number
        for number in unreached(run)
        if not (run.parameters[number].name or run.parameters[number].made)
    ]
    for optimizer in dict.fromkeys(min(run.owners[number]) for number in lost):
        site, steps = run.made[optimizer][0].site, run.stepping[optimizer]
        at, scope = (Statement.at(site[0]), scope_at(site[0])) if site else (None, None)
        if at is None or scope is None:
            continue
        for name in sorted(names_read(at.node) & definitions(scope).keys()):
            lines = [each.value.lineno for each in definitions(scope)[name] if _is_leaf(each.value)]
            if lines and lines[-1] > at.line:
                yield RULE.finding(
                    Frame(at.file, lines[-1], ""),
                    f"`{name}` is made again here, but {run.optimizer(optimizer)} holds the first `{name}`, which "
                    f"no loss uses. {steps} steps left every later `{name}` unchanged.",
                    why="The optimizer does not update the tensor that gets gradients.",
                    advice=f"Write into the tensor that the optimizer holds: {name}.copy_(...) under "
                    "torch.no_grad().",
                    count=steps,
                    evidence={"new": 1, "old": 1, "steps": steps},
                )


def _is_leaf(value: ast.AST) -> bool:
    return any(map(makes_leaf, inside(ast.Call, value)))


def _advice(optimizer: str, new: list[Parameter], old: list[Parameter], *, listed: bool) -> str:
    """Return the advice: pass the new parameters to the optimizer, or keep the old ones, depending on the cause."""
    make = f"Construct {optimizer}{' and its list of parameters' if listed else ''} after this line"
    line = text_of(made_line(new[0], old))
    if not {each.shape for each in new} <= {each.shape for each in old}:
        add = f"{optimizer}.add_param_group({{'params': ...}})"
        return f"{make}. If it must exist earlier, add the new parameters after this line: {add}."
    if "Parameter(" in line:
        later = "" if len(new) > len(old) else f", or {make[:1].lower()}{make[1:]}"
        return f"Write into the old parameter instead: call copy_() under torch.no_grad(){later}."
    if "copy" in line:
        return f"{make}, or write into the old parameters with load_state_dict()."
    return f"{make}."


def _fix(at: Statement, names: list[str], optimizer: str) -> Fix:
    return _written_into(at, names) or _made_later(at, optimizer)


def _written_into(at: Statement, names: list[str]) -> Fix:
    """Load a copy's values into the model that the optimizer holds."""
    if not isinstance(at.node, ast.Assign) or not isinstance(at.value, ast.Call) or len(at.value.args) != 1:
        return ()
    if method(at.node) != "deepcopy" or getattr(at.function, "name", "") == "__init__":
        return ()  # before the first assignment there is no model to load into
    target = ast.unparse(at.node.targets[0])
    if not any(name.startswith(f"{target.removeprefix('self.')}.") for name in names):
        return ()
    load = f"{target}.load_state_dict({operand(at.value.args[0])}.state_dict())"
    return Insert(load, after=at.line), Delete(at.line)


def _made_later(at: Statement, optimizer: str) -> Fix:
    """Construct the optimizer after the line that makes the new parameters, if no line in between uses it."""
    makers = [
        node
        for node in at.block
        if isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == optimizer
        and node.lineno < at.line
    ]
    if len(makers) != 1 or not optimizer.isidentifier():
        return ()
    if any(_is_list(value) for name in names_read(makers[0].value) for value in at.assigned_to(name)):
        return ()  # the list is built before the optimizer
    for node in at.block:
        if makers[0].lineno < node.lineno <= at.line and _uses(at.file, node, optimizer):
            return ()
    return (Move(makers[0].lineno, after=at.line),)


def _is_list(value: ast.expr) -> bool:
    return isinstance(value, (ast.List, ast.ListComp, ast.Dict)) or "parameters(" in ast.unparse(value)


def _uses(file: str, node: ast.AST, name: str) -> bool:
    """Return whether a statement uses a name, or calls a function in this file that uses it."""
    own = [scope.node for call in inside(ast.Call, node) for scope in functions(called(call), [file])]
    return any(each.id == name for each in inside(ast.Name, node, *own))


RULE = Rule("GG502", "stale-optimizer-params", "error", __doc__ or "", _judge)
