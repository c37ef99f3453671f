"""Finds low-rank adapters that are frozen at zero, and new layers that are frozen with a pretrained network."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._gradient_modes import requires_grad
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, definitions, is_function, own_calls, scopes_of
from gradgate.checker.analysis._source import nodes_of, path_to, whole_text
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.ownership._batch_norms import freezing_line
from gradgate.events import Frame

_LEAST = 3  # steps


def frozen_adapters(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report two frozen factors of a product, one of them zero, unless a trained parameter has the same name."""
    found: dict[tuple[tuple[str, ...], bool], set[int]] = defaultdict(set)
    last = max(run.stepping, default=-1)
    for number in run.held(last) & run.moved if run.ended == "finished" and run.stepping else ():
        parameter = run.parameters[number]
        if parameter.trainable and (parameter.idle or parameter.beside):
            found[parameter.idle or parameter.beside, bool(parameter.idle)].add(number)
    known, scopes = run.words(run.parameters), [scope for file in run.files for scope in scopes_of(file)]
    for ((zero, other), adapted), numbers in found.items():
        names, ids = {each.partition(".")[0] for each in (zero, other)}, frozenset(numbers)
        made = [each for name in names for scope in scopes for each in definitions(scope).get(f".{name}", ())]
        line, times = freezing_line(run, ids) if adapted else _frozen_for_good(run), len(run.steps(last))
        if (
            names & known
            or line is None
            or any("requires_grad=False" in ast.unparse(each.value) for each in made)
            or (not adapted and any(trained for (_, trained) in found))
        ):
            continue
        yield rule.finding(
            line,
            f"`{zero}` is zero and frozen, and so is `{other}`, the other factor: the adapter adds nothing. "
            + (
                f"{times} steps changed the layer that it adapts instead: {run.names(ids)}."
                if adapted
                else f"{times} steps changed only {run.names(ids)}."
            ),
            why="The pretrained layer is trained, and the adapter keeps its initial values."
            if adapted
            else "No line of the script unfreezes the adapter: it keeps its initial values.",
            advice=f"Freeze the layer, and train `{zero}` and `{other}`. Is the condition the wrong way round?"
            if adapted
            else f"Set requires_grad to True for `{zero}` and `{other}` after this line, or insert them only then.",
            severity="warning",
            count=times,
            evidence={"parameters": len(ids), "steps": times},
            about=ids,
        )


def frozen_new_layers(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report a new layer that is frozen together with a trained or loaded network, while other parts are trained.

    A layer that the script freezes, copies or loads by name keeps its values on purpose.
    """
    found: dict[str, set[int]] = defaultdict(set)
    last = max(run.stepping, default=-1)
    for number in run.held(last) & run.moved if run.ended == "finished" and run.stepping else ():
        if run.parameters[number].trainable and run.parameters[number].untrained:
            found[run.parameters[number].untrained].add(number)
    for name, numbers in found.items():
        layer, ids, times = name.split(".")[-2:][0], frozenset(numbers), len(run.steps(last))
        word = rf"\[(-1|{layer})\]" if layer.isdigit() else rf"\b{layer}\b"
        by_name = re.compile(
            rf"{word}.*(requires_grad|\.weight|\.data\b|load_state_dict)|\b(requires_grad|init\.).*{word}"
            rf"|\bfor\b[^\"']*{word}"
        )
        line = freezing_line(run, ids)
        if line is None or times < _LEAST or any(by_name.search(whole_text(file)) for file in run.files):
            continue
        yield rule.finding(
            line,
            f"`{name}` was made in this run and is frozen before any step changed it: {times} steps changed only "
            f"{run.names(ids)}.",
            why="The other frozen weights were trained or loaded. This layer keeps its random initial values.",
            advice=f"Set requires_grad to True for `{layer}`, too, and pass its parameters to the optimizer.",
            severity="warning",
            count=times,
            evidence={"parameters": len(ids), "steps": times},
            about=ids,
        )


def _frozen_for_good(run: Run) -> Frame | None:
    """Return the last line that freezes parameters in every run, if no line may unfreeze any."""
    lines = []
    for file in run.files:
        for node in nodes_of([file]):
            value = requires_grad(node)
            if value is None:
                continue
            if getattr(value, "value", None) is not False:
                return None
            line = getattr(node, "lineno", 0)
            if not _may_be_skipped(run, file, line):
                lines.append(Frame(file, line, ""))
    return lines[-1] if lines else None


def _may_be_skipped(run: Run, file: str, line: int) -> bool:
    """Return whether a line, or a call of its function, depends on a condition, or is in a constructor."""
    path = path_to(file, line)
    around = [node for node in path if isinstance(node, ast.If) and "__name__" not in ast.unparse(node.test)]
    functions = [node for node in path if is_function(node)]
    if around or any(each.name == "__init__" for each in functions):
        return True
    calls = [
        (each, call.lineno)
        for each in run.files
        for scope in scopes_of(each)
        for call in own_calls(scope.node)
        if functions and called(call) == functions[-1].name
    ]
    conditions = [
        node for each, at in calls for node in path_to(each, at) if isinstance(node, (ast.If, ast.IfExp))
    ]
    return any("__name__" not in ast.unparse(node.test) for node in conditions)
