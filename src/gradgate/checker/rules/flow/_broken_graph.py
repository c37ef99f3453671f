"""A part of the loss is cut from what it was computed from.

## What it does
Looks for trainable parameters whose module ran without a graph, whose output was given to a part that did
(``no_grad`` in the middle: the parts before it get nothing), or whose output was taken out of the graph
(``detach``, ``.data``, ``.item()``, numpy, ``argmax``, a re-wrapped leaf); and for summands of a loss through which
no gradient flows although they were computed from such parameters; a gradient penalty without
``create_graph=True`` is one.

## Why is this bad?
The number that is printed holds the term, the gradient does not: it is minimised by chance only.

## Example
    loss = recon + beta * kl.item()                      # a constant
    slope = torch.autograd.grad(score.sum(), x)[0]       # no graph of its own
    loss = loss + 10 * (slope.norm(2, 1) - 1).square().mean()

## Use instead
    loss = recon + beta * kl
    slope = torch.autograd.grad(score.sum(), x, create_graph=True)[0]

## Known limits
A cut that leaves another path to the same parameters is found only where it makes a whole summand constant.
Where the source cannot be read (typed in, run from a page), it is not known what a loss is made of: there
``detach``, ``.data`` and ``no_grad`` are found by what happened, and neither numbers that were taken out nor
summands are judged.
Targets, baselines and weights of a loss may be detached: nothing is said of factors.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Locally disabling gradient computation".
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradgate.checker.analysis._live import dead_parts
from gradgate.checker.analysis._no_grad import off_in_blocks, readable
from gradgate.checker.analysis._parameter_usage import replaced, temporary, unowned, unreached
from gradgate.checker.analysis._reader import Reader
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, own_nodes, scope_at, statements_at
from gradgate.checker.analysis._slices import Slice, files_of
from gradgate.checker.analysis._source import in_condition, path_to, text_of
from gradgate.checker.rules._finding import Finding
from gradgate.checker.rules._rule import Rule
from gradgate.events import (
    Backward,
    Cut,
    Differentiated,
    Event,
    Frame,
    Ids,
    NoGradEntered,
    OptimizerMade,
    Ran,
    Site,
)

_TENSORS = ("detach", "detach_", "data", "Parameter")  # cuts that leave a tensor
_WHY = "What is cut off is shown in the loss and is not trained by it."


def _judge(run: Run) -> Iterator[Finding]:
    missing = unreached(run)
    for one in replaced(run):
        missing -= one.old
    for frame, (ids, how) in cut_off(run, missing).items():
        yield RULE.finding(
            frame,
            f"{how} cuts {run.names(ids)} off from the loss: no gradient reached "
            f"{'it' if len(ids) == 1 else 'them'} in {run.log.steps} steps.",
            why=_WHY,
            advice="Take the value with its graph: without detach, item, numpy, no_grad or a new tensor around it.",
            severity="info" if in_condition(frame) else None,  # an option that somebody has chosen
            count=run.log.steps,
            evidence={"parameters": len(ids), "steps": run.log.steps},
        )
    yield from _constants(run)


def cut_off(run: Run, missing: Ids) -> dict[Frame, tuple[Ids, str]]:
    """Return lines that cut whole parameters off, with these and what the line does."""
    if not missing:
        return {}
    wrapped = _rewrapped(run, missing)
    if wrapped is not None:
        return {wrapped: (missing, "A new leaf")}
    found: dict[Frame, tuple[Ids, str]] = {}
    slices = {site: Slice(site, _files(run)) for site in _losses(run)}
    for line, ids in off_in_blocks(run, missing, slices.values()):
        found[line] = (found.get(line, (frozenset(), ""))[0] | ids, "Running without gradients")
    for event in run.of(Cut):
        ids = event.parameters & missing
        frame = event.site[0]
        if not ids or frame in found or event.op == "no_grad":
            continue
        if any(one.holds(frame, event.op) for one in slices.values()) or _taken_on(run, event):
            found[frame] = (ids, f".{event.op}()" if event.op not in ("data", "Parameter") else event.op)
    for event in run.of(Ran):
        ids = event.parameters & missing
        frame = _compared(event.site) if event.recording and ids and _alone(run, ids) else None
        if frame is not None and any(_compares(one, frame) for one in slices.values()):
            found.setdefault(frame, (found.get(frame, (frozenset(), ""))[0] | ids, "A comparison"))
    # What is cut twice is cut by the first.
    told: set[int] = set()
    first = {}
    for frame, (ids, how) in found.items():
        if ids - told:
            told |= ids
            first[frame] = (ids, how)
    return first


def _losses(run: Run) -> set[Site]:
    """Return where losses are back-propagated; where a trainer does that, where their terms are computed."""
    sites = set()
    for event in run.of(Backward):
        text = text_of(event.site[0]) if event.site else "a trainer's"  # "": it cannot be read
        by_trainer = bool(text) and "backward" not in text
        sites |= {event.site, *(term.site for term in event.terms if by_trainer)}
    return sites


def _taken_on(run: Run, cut: Cut) -> bool:
    """Say whether a value that was cut is to be computed with, where the source does not tell.

    Numbers that are only reported are taken out too, but as numbers.
    """
    unread = not readable(cut.site) or not all(readable(event.site) for event in run.of(Backward))
    return unread and not cut.scalar and cut.op in _TENSORS


def _compared(site: Site) -> Frame | None:
    """Return the line that only compares what a module gave: a hard threshold."""
    for frame in site:
        scope = scope_at(frame)
        names = {
            target.id
            for statement in statements_at(frame)
            for target in getattr(statement, "targets", ())
            if isinstance(target, ast.Name)
        }
        for node in own_nodes(scope.node) if scope is not None and names else ():
            if isinstance(node, ast.Compare) and any(
                isinstance(inner, ast.Name) and inner.id in names for inner in ast.walk(node)
            ):
                return Frame(frame.file, node.lineno, frame.function)
    return None


def _compares(one: Slice, frame: Frame) -> bool:
    return any(isinstance(node, ast.Compare) and node.lineno == frame.line for _, node in one.nodes)


def _alone(run: Run, ids: Ids) -> bool:
    """Say whether the module that holds these parameters holds none that is reached."""
    prefixes = tuple(run.name(number).rpartition(".")[0] + "." for number in ids)
    return not any(run.name(number).startswith(prefixes) for number in run.reached)


def _rewrapped(run: Run, missing: Ids) -> Frame | None:
    """Return the line that makes a new leaf in each forward pass, in which the gradient ends."""
    fresh = [run.parameters[number] for number in unowned(run)]
    wrapped = temporary(run, fresh)
    if wrapped:
        return run.parameters[min(wrapped)].made[0]
    made = next(
        number
        for number, event in run.numbered(OptimizerMade)
        if isinstance(event, OptimizerMade) and any(group.parameters & missing for group in event.groups)
    )
    lost = [
        event
        for event in run.events[made:]
        if isinstance(event, Backward) and event.others and not event.reached & run.owned
    ]
    for site in {event.site for event in lost}:
        if len([event for event in run.of(Backward) if event.site == site and event.reached & run.owned]):
            continue
        leaves = [
            (file, node)
            for file, node in Slice(site, _files(run)).nodes
            if isinstance(node, ast.Call) and _makes_leaf(node)
        ]
        if leaves:
            file, node = leaves[0]
            return Frame(file, node.lineno, "")
    return None


def _makes_leaf(call: ast.Call) -> bool:
    wanted = any(
        keyword.arg == "requires_grad" and getattr(keyword.value, "value", None) is True
        for keyword in call.keywords
    )
    return wanted or called(call) in ("requires_grad_", "Parameter")


def _constants(run: Run) -> Iterator[Finding]:
    """Yield a finding for each summand that was cut from what it was computed from."""
    sites = [
        term.site
        for event in run.of(Backward)
        if event.reached & run.owned
        for term in event.terms
        if term.kind == "constant" and term.site
    ]
    said: set[Frame] = set()
    for site in dict.fromkeys(sites):
        for part, value in dead_parts(Reader(_files(run), _names(run)), site):
            frame = next((cut for cut in value.cuts if _confirmed(run, cut)), None)
            if frame is None or frame in said:
                continue
            said.add(frame)
            yield RULE.finding(
                frame,
                f"`{ast.unparse(part)}` is added to the loss at line {site[0].line} as a constant: "
                "its graph is cut here.",
                why=_WHY,
                advice="Pass create_graph=True, so that the gradient has a graph of its own."
                if any(isinstance(event, Differentiated) for event in _events_at(run, frame))
                else "Add the value itself, not a copy without its graph.",
                count=sites.count(site),
                evidence={"added_at": site[0].line, "times": sites.count(site)},
            )


def _names(run: Run) -> set[str]:
    """Return all parts of the names of what is trained: the names that its modules go by."""
    return {part for number in run.owned for part in run.name(number).split(".")[:-1] if not part.isdigit()}


def _confirmed(run: Run, frame: Frame) -> bool:
    """Say whether it was seen that gradients ended at a line which some optimizer's parameters would have got."""
    if any(isinstance(node, ast.Compare) for one in statements_at(frame) for node in ast.walk(one)):
        return True  # nothing tells of a comparison; that the summand is a constant is sure
    for event in _events_at(run, frame):
        if isinstance(event, Cut) and event.parameters & run.owned:
            return True
        if isinstance(event, Differentiated) and not event.create and event.reached & run.owned:
            return True
        if isinstance(event, NoGradEntered):
            return True
    return False


def _events_at(run: Run, frame: Frame) -> Iterator[Event]:
    for event in run.of(Cut, Differentiated, NoGradEntered):
        inner = event.site[0] if event.site else Frame("", 0, "")
        # A decorator's block is entered at the line that calls the function.
        calls = isinstance(event, NoGradEntered) and f"{frame.function}(" in text_of(inner)
        if inner.file == frame.file and (calls or _within(inner, frame)):
            yield event


def _within(inner: Frame, frame: Frame) -> bool:
    """Say whether a line is part of the innermost statement at another; a decorator's is the whole function."""
    node = path_to(frame.file, frame.line)[-1:]
    last = getattr(node[0], "end_lineno", frame.line) if node else frame.line
    return frame.line <= inner.line <= last or inner.line == frame.line


def _files(run: Run) -> tuple[str, ...]:
    return files_of({event.site for event in run.of(Backward, Cut, Ran, Differentiated)})


RULE = Rule("GG402", "broken-graph", "error", __doc__ or "", _judge)
