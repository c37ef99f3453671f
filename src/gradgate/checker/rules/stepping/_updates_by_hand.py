"""Finds updates by hand that change no parameter because the result is lost or gets another name."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

from gradgate.checker.analysis._gradient_modes import no_grad_around, without_gradients
from gradgate.checker.analysis._gradient_reads import read_after
from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, called_by, last_name, names_stored
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import inside, loops_around, statement_at, tree_of, whole_text
from gradgate.checker.analysis._statement import Statement, method
from gradgate.checker.fixes import Delete, Fix, Insert, PutUnder
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Differentiated, Frame, NoGradEntered, Site, Written

_LEAST = 3  # backward calls
_FEW = 8  # most backward calls of a line before a failure: one or more in each of two iterations
_QUIET = (NoGradEntered, Written)
_LEAVES = ("requires_grad", "requires_grad_", "retain_grad")
_RESULT = "a result, whose .grad stays None"
_RESULTS = ("sub", "add", "mul", "div", "addcmul", "addcdiv", "lerp")


def lost_updates(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report updates whose result is lost, if no parameter ever changes."""
    if run.written("value") or run.moved:
        return
    stepped = {number for number, owners in run.owners.items() if any(run.stepping[each] for each in owners)}
    counts = Counter(number for event in run.of(Backward) for number in event.reached - stepped)
    ids = frozenset(each for each, count in counts.items() if count >= _LEAST)
    if not ids or not all(run.parameters[number].still for number in ids):
        return
    calls = run.calls_reaching(ids)
    for file in files_of(event.site for event in calls):
        for line in _lost_updates(tree_of(file)):
            yield rule.finding(
                Frame(file, line, ""),
                "This update creates a new tensor instead of changing the parameter: no parameter changes in "
                f"{len(calls)} backward calls.",
                why="Nothing is trained: the parameters keep their initial values.",
                advice="Update in place, under torch.no_grad(): p -= lr * p.grad.",
                fix=_in_place,
                count=len(calls),
                evidence={"backward_calls": len(calls)},
                about=ids,
            )


def rebound_leaves(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report leaves that are rebound under no_grad. Only the first of a line's backward calls reaches them."""
    for site, (first, *later) in _seen_calls(run).items():
        if len(later) <= _LEAST or max(event.others for event in later) >= first.others:
            continue
        for file in files_of([site]):
            for line, name in _rebinds(tree_of(file)):
                yield rule.finding(
                    Frame(file, line, ""),
                    f"`{name}` is rebound to a tensor without requires_grad: the first backward call reached "
                    f"it, but none of the {len(later)} later calls did.",
                    why="The tensor is updated once and is a constant afterwards.",
                    advice=f"Update in place, under torch.no_grad(): {name} -= ..., then {name}.grad = None.",
                    count=len(later),
                    evidence={"backward_calls": len(later)},
                )


def replaced_leaves(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report updates that replace a leaf by the result of an operation."""
    yield from _failed_updates(run, rule)
    yield from _unused_results(run, rule)


def _seen_calls(run: Run) -> dict[Site, list[Backward]]:
    return grouped((event.site, event) for event in run.of(Backward) if event.seen)


def _replacing(
    rule: Rule, found: Mapping[Frame, str], then: str, calls: int, count: int, fix: Fix
) -> Finding:
    """Report the lines that replace leaves, at the first of them. ``then``: what follows from it."""
    first, *others = dict.fromkeys(f"`{found[line]}`" for line in sorted(found))
    return rule.finding(
        min(found),
        f"This line replaces {first} by {then}"
        + (f" The same holds for {', '.join(others)}." if others else ""),
        why="Only a leaf with requires_grad gets a gradient. The result of an operation is not a leaf.",
        advice="Update in place, under torch.no_grad(): p -= lr * p.grad. Then clear: p.grad = None.",
        fix=fix,
        count=count,
        evidence={"backward_calls": calls},
    )


def _loop_parts(site: Site) -> Iterator[tuple[str, list[ast.AST]]]:
    """Yield each file on a call's stack, with the outermost loop and the functions that the loop calls there."""
    loops = [loop for frame in site for loop in loops_around(frame)][-1:]
    for file in files_of([site]) if loops else ():
        yield file, [*(loops if file == site[-1].file else ()), *called_by(file, *loops)]


def _failed_updates(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report the updates if the script soon fails."""
    calls = Counter(event.site for event in run.of(Backward)) if run.ended == "failed" else {}
    found: dict[Frame, str] = {}
    for site in (site for site, times in calls.items() if times <= _FEW):
        for file, parts in _loop_parts(site):
            if not any(node.attr in _LEAVES for node in inside(ast.Attribute, *parts)):
                found |= {
                    Frame(file, node.lineno, ""): ast.unparse(node.targets[0])
                    for node in inside(ast.Assign, *parts)
                    if _replaces(node, ast.unparse(node.targets[0]))
                }
    if not found:
        yield from _failed_in_place(run, rule)
        return
    where, value = min(found), ast.unparse(getattr(statement_at(min(found)), "value", None) or ast.Pass())
    constant = no_grad_around(where) is not None or ".data" in value or "detach()" in value
    then, total = "a constant: the next loss has no graph" if constant else _RESULT, sum(calls.values())
    then += f". The script failed after {total} backward calls."
    yield _replacing(rule, found, then, total, len(found), ())


def _failed_in_place(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report updates that change a leaf in place while autograd records, if the script fails at once."""
    computed = [*run.numbered(Backward, Differentiated)] if run.ended == "failed" else []
    number, last = computed[-1] if computed else (0, None)
    once = last is not None and sum(event.site == last.site for _, event in computed) == 1
    if last is None or not once or any(isinstance(each, _QUIET) for each in run.events[number:]):
        return
    for file, parts in _loop_parts(last.site):
        updates: list[ast.AugAssign | ast.Expr] = [*inside(ast.AugAssign, *parts)]
        updates += inside(ast.Expr, *parts)
        pairs = [(node.value, node.targets) for node in inside(ast.Assign, *parts)]
        pairs += [(node.iter, [node.target]) for node in inside(ast.For, *parts)]
        gradients = {
            name for value, to in pairs if "grad" in ast.unparse(value) for name in names_stored(*to)
        }
        lines = {node.lineno: node for node in updates if _is_in_place(node, gradients)}
        found = [
            Frame(file, line, "") for line in sorted(lines) if no_grad_around(Frame(file, line, "")) is None
        ]
        if found:
            yield rule.finding(
                found[0],
                "This line changes a leaf in place while autograd records, which torch does not allow. The script "
                "failed in its first iteration.",
                why="Autograd would record the update as a part of the next loss's graph.",
                advice="Put the update under `with torch.no_grad():`.",
                fix=tuple(PutUnder(each.line, "with torch.no_grad():") for each in found),
                count=len(found),
                evidence={"backward_calls": len(run.of(Backward))},
            )


def _is_in_place(node: ast.AugAssign | ast.Expr, gradients: set[str]) -> bool:
    """Return whether a statement changes a tensor in place by its gradient: ``w -= w.grad``, ``p.sub_(lr * g)``."""
    match node:
        case ast.AugAssign(target, ast.Sub(), value):
            given = [value]
        case ast.Expr(ast.Call(ast.Attribute(target, "sub_" | "add_" | "addcdiv_"), given)):
            pass
        case _:
            return False
    name = ast.unparse(target)
    of = ast.unparse(target.value) if isinstance(target, ast.Subscript) else name
    read = {ast.unparse(each) for each in inside(ast.expr, *given)}
    return not name.endswith((".data", ".grad")) and bool(
        read & {f"{name}.grad", f"{of}.grad", *(gradients - {name})}
    )


def _unused_results(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report the updates if later calls reach the leaf only through its update, in graphs that don't grow."""
    for first, *later in _seen_calls(run).values():
        constant = len(later) >= _LEAST and later[0].nodes == later[-1].nodes
        used = [{number: site[0] for number, site in each.through if site} for each in (first, *later)]
        found: dict[Frame, str] = {}
        for number, line in used[-1].items() if constant else ():
            always = all(each.get(number) == line for each in used[1:]) and used[0].get(number) != line
            if always and run.parameters[number].still and (name := _replaced_at(line)):
                found[line] = name
        if found:
            reach = (
                f"the {len(later)} later backward calls reach only the first tensor, which nothing changes"
            )
            fix = tuple(chain(*map(_in_place_and_cleared, found)))
            yield _replacing(rule, found, f"{_RESULT}: {reach}.", len(later), len(later), fix)


def _replaced_at(line: Frame) -> str:
    """Return the name of the leaf that a line replaces, or whose replacement the line returns; else ""."""
    text = whole_text(line.file)
    match node := statement_at(line):
        case ast.Assign([target, *_], value):
            name = ast.unparse(target)
            read = name in map(ast.unparse, inside(ast.expr, value)) and f"{name}.grad" in text
            read = read or (isinstance(target, ast.Subscript) and bool(_with_gradient(value, text)))
            return name if read or _replaces(node, name) else ""
        case ast.Return(ast.BinOp() as value) | ast.Expr(ast.Call(args=[*_, value])):
            return _with_gradient(value, text)
    return ""


def _with_gradient(value: ast.expr, text: str) -> str:
    """Return the first name in a value if a text reads the name's ``.grad``; else ""."""
    return next((each.id for each in inside(ast.Name, value) if f"{each.id}.grad" in text), "")


def _replaces(node: ast.Assign, name: str) -> bool:
    """Return whether an assignment computes a name's new value from its gradient, or a new list from gradients."""
    match node.value:
        case ast.ListComp(of) | ast.DictComp(_, of):
            read = map(ast.unparse, inside(ast.expr, *node.value.generators))
            return any(".grad" in ast.unparse(each) for each in inside(ast.BinOp, of)) and name in read
        case ast.BinOp() | ast.Call() as value:
            parts = [ast.unparse(each) for each in inside(ast.expr, value)]
            calls = [called(call) for call in inside(ast.Call, value)]
            leaf = any(each.endswith(("_", "Parameter", "tensor")) for each in calls)
            return not leaf and parts.count(name) > parts.count(f"{name}.grad") > 0
    return False


def _rebinds(tree: ast.Module | None) -> Iterator[tuple[int, str]]:
    """Yield lines that assign ``w = w - lr * w.grad`` under no_grad, if no line sets requires_grad later."""
    text = ast.unparse(tree) if tree is not None else ""
    for scope in [*inside(ast.With, tree), *inside(ast.FunctionDef, tree)]:
        for node in inside(ast.Assign, scope) if without_gradients(scope) is not None else ():
            name = ast.unparse(node.targets[0])
            match node.value:
                case ast.BinOp(left, _, right) if ast.unparse(left) == name:
                    if f"{name}.grad" in ast.unparse(right) and f"{name}.requires_grad" not in text:
                        yield node.lineno, name


def _lost_updates(tree: ast.Module | None) -> Iterator[int]:
    """Yield lines that compute an update from a gradient but assign it to nothing or to a local name."""
    assigned = [node for node in inside(ast.Assign, tree) if method(node) == "state_dict"]
    copies = {ast.unparse(node.targets[0]) for node in assigned}
    scopes: list[tuple[ast.AST, set[str]]] = [
        *((node, {name.id for name in inside(ast.Name, node.target)}) for node in inside(ast.For, tree)),
        *((node, {each.arg for each in node.args.args}) for node in inside(ast.FunctionDef, tree)),
    ]
    for scope, names in scopes:
        updates: list[ast.Assign | ast.Expr] = [*inside(ast.Assign, scope)]
        computed = set[str]()  # from gradients
        for node in updates + inside(ast.Expr, scope):
            read = {last_name(inner) for inner in ast.walk(node.value)}
            of_computed = isinstance(node.value, ast.BinOp) and read & computed
            if of_computed or any("grad" in each.lower() for each in read):
                if _is_lost(node, names - read_after(node, scope), copies):
                    yield node.lineno
                computed |= names_stored(*getattr(node, "targets", ()))


def _is_lost(node: ast.Assign | ast.Expr, names: set[str], copies: set[str]) -> bool:
    """Return whether an update gets lost. ``names`` are local variables, ``copies`` are copies of state dicts."""
    match node:
        case ast.Expr():  # p.sub(lr * p.grad), without the underscore
            return method(node) in _RESULTS
        case ast.Assign([ast.Subscript(of)]):  # each call of state_dict returns a new dict
            return ast.unparse(of) in copies or ast.unparse(of).endswith(".state_dict()")
        case ast.Assign([ast.Name()], ast.ListComp(ast.BinOp(_, ast.Sub()))):  # a new list of new tensors
            return True
        case ast.Assign([ast.Name(name)], ast.BinOp() as value):
            return name in names & {used.id for used in inside(ast.Name, value)}
    return False


# The fix


def _in_place(at: Statement) -> Fix:
    """Turn ``p = p - ...`` into ``p -= ...``, if it is already under no_grad."""
    quiet = no_grad_around(Frame(at.file, at.line, ""))
    match at.node:
        case ast.Assign([target, *_], ast.BinOp(left, ast.Sub(), right)) if quiet:
            name = ast.unparse(target)
            if ast.unparse(left) == name:
                return (Insert(f"{name} -= {ast.unparse(right)}", after=at.line), Delete(at.line))
    return ()


def _in_place_and_cleared(line: Frame) -> Fix:
    """Turn ``p = p - ...`` into ``p -= ...`` under no_grad, then clear ``p.grad``: a new tensor has none."""
    match statement_at(line):
        case ast.Assign([ast.Name() | ast.Attribute() as target], ast.BinOp(left, ast.Sub(), right)):
            name = ast.unparse(target)
            if ast.unparse(left) == name:
                update = f"with torch.no_grad():\n    {name} -= {ast.unparse(right)}\n{name}.grad = None"
                return (Insert(update, after=line.line), Delete(line.line))
    return ()
