"""Finds loops over parameters that compute new tensors, such as averages, but change no parameter."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._gradient_modes import no_grad_around
from gradgate.checker.analysis._grouping import union
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, is_function, part_of, root_of
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import inside, loops_in, path_to, tree_of
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Delete, Fix, Insert
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, Ids, NoGradEntered, Stepped

_LEAST = 3  # steps
_RESULTS = ("sub", "add", "mul", "div", "lerp", "clamp", "clip", "clamp_min", "clamp_max")


def lost_writes(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report averages, limits and copies that get lost. Updates from gradients are not reported here."""
    steps = run.of(Stepped)
    sites = [event.site for event in run.of(Backward, NoGradEntered, Stepped)]
    files = files_of(sites) if len(steps) >= _LEAST else ()
    running = {frame.function for site in sites for frame in site}
    running |= {called(call) for call in inside(ast.Call, *map(tree_of, files))}
    for file in files:
        for loop in inside(ast.For, tree_of(file)):
            around = [node.name for node in path_to(file, loop.lineno) if is_function(node)]
            if re.search("param|state_dict", ast.unparse(loop.iter)) and running.issuperset(around[-1:]):
                for node in inside(ast.stmt, *loop.body):
                    own = loops_in(path_to(file, node.lineno))[:1] == [loop]
                    target = _lost(node, loop) if own else None
                    ids = None if target is None else _meant(run, loop, target)
                    if target is not None and ids is not None:
                        yield rule.finding(
                            Frame(file, node.lineno, ""),
                            "This line creates a new tensor, which nothing uses, instead of changing "
                            f"{run.names(ids) if ids else 'the parameter'}.",
                            why=(
                                "The parameters keep their values: an average, a limit or a copy that is written "
                                "like this has no effect."
                            ),
                            advice=(
                                "Write into the parameter, under torch.no_grad(): "
                                f"{ast.unparse(target)}.copy_(...)."
                            ),
                            fix=_written,
                            count=len(steps),
                            evidence={"steps": len(steps)},
                            about=ids,
                        )


def _lost(node: ast.stmt, loop: ast.For) -> ast.expr | None:
    """Return the expression of the parameter that a statement should have changed, if it changes nothing."""
    names, value = {name.id for name in inside(ast.Name, loop.target)}, getattr(node, "value", None)
    calls = inside(ast.Call, value)
    if "grad" in ast.unparse(node) or any(called(call).endswith("_") or call.keywords for call in calls):
        return None
    computes = isinstance(value, ast.BinOp) or (isinstance(value, ast.Call) and called(value) in _RESULTS)
    match node:
        case ast.Assign([ast.Name(name) as target]) if computes and name in names:
            own = [each for each in inside(ast.Name, value) if each.id == name]
            later = [each for each in inside(ast.Name, *loop.body) if each.lineno > (node.end_lineno or 0)]
            return target if own and all(each.id != name for each in later) else None
        case ast.Expr(ast.Call(ast.Attribute() as function)) if computes and root_of(function) in names:
            return ast.Name(root_of(function))
        case ast.Assign([ast.Subscript(ast.Call() as of) as target]) if called(of) == "state_dict":
            return target
    return None


def _meant(run: Run, loop: ast.For, target: ast.expr) -> Ids | None:
    """Return the parameters of an expression, as far as they are known; None if the script also writes to them."""
    source = target
    if isinstance(target, ast.Name):
        parts = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
        places = [
            n for n, part in enumerate(parts) if target.id in {each.id for each in inside(ast.Name, part)}
        ]
        source = part_of(loop.iter, places[0])[0] if places else loop.iter
    words = set(re.findall(r"(\w+)\.(?:named_parameters|parameters|state_dict)\(", ast.unparse(source))[-1:])
    ids = frozenset(number for number in run.parameters if words & run.words([number]))
    written = union(event.parameters for event in run.written("value"))
    return None if (ids or written) & written else ids


def _written(at: Statement) -> Fix:
    """Write the value into the parameter: ``p.copy_(...)``, through ``.data`` if gradients are on."""
    if at.value is None:
        return ()
    target = at.node.targets[0] if isinstance(at.node, ast.Assign) else ast.Name(root_of(at.value))
    data = (
        ".data"
        if isinstance(target, ast.Name) and no_grad_around(Frame(at.file, at.line, "")) is None
        else ""
    )
    text = f"{ast.unparse(target)}{data}.copy_({ast.unparse(at.value)})"
    return (Insert(text, after=at.line), Delete(at.line))
