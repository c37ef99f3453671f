"""Finds lines that turn gradients off for parameters that an optimizer should train."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from itertools import chain

from gradgate.checker.analysis._gradient_modes import no_grad_around, without_gradients
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, key_of
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import inside, statement_at, tree_of
from gradgate.events import Cut, Frame, Ids, NoGradEntered, Ran, Site


def no_grad_cuts(run: Run, missing: Ids, slices: Collection[Slice]) -> Iterator[tuple[Frame, Ids]]:
    """Yield lines that turn gradients off, each with the parameters that it detaches from the loss.

    A line counts if the parameters' module runs only inside the block, or if the block reads the module's output
    and the loss is computed from the block's result. If the source can't be read, a line counts if a module uses
    the parameters in its block.
    """
    recorded = frozenset().union(*(event.parameters for event in run.of(Ran) if event.recording))
    for number, event in run.numbered(Ran, Cut, NoGradEntered):
        if isinstance(event, NoGradEntered):
            yield from _held_before(event, missing, slices)
            continue
        ids: Ids = frozenset()
        if isinstance(event, Ran) and not event.recording:
            ids = event.parameters & missing - recorded
        elif isinstance(event, Cut) and event.op == "no_grad":
            used = any(each.holds(event.site[0]) for each in slices) or not readable(event.site)
            ids = event.parameters & missing if used else ids
        line = _block_around(run, number) if ids else None
        if line is not None:
            yield line, ids


def _block_around(run: Run, number: int) -> Frame | None:
    """Return the line that turns gradients off for an event.

    The line is read from the source. If the source can't be read, the result is the line of the last such block
    entered before the event.
    """
    site = run.events[number].site
    line = next(filter(None, map(no_grad_around, site)), None)
    line = line or next((frame for frame in site if reentrant_checkpoint(frame) is not None), None)
    if line is not None or readable(site):
        return line
    for event in reversed(run.events[:number]):
        if not isinstance(event, NoGradEntered) or not event.site:
            continue
        block, outer = event.site[0], event.site[1:]
        for place, frame in enumerate(site):
            same = (block.file, block.function, outer) == (frame.file, frame.function, site[place + 1 :])
            if same and (block.line < frame.line or (place and block.line == frame.line)):
                return block
    return None


def reentrant_checkpoint(frame: Frame) -> ast.keyword | None:
    """Return the ``use_reentrant=True`` with which a line calls ``checkpoint``.

    Such a checkpoint runs its function without gradients. The backward pass runs it again if an input needs a
    gradient.
    """
    calls = [call for call in inside(ast.Call, statement_at(frame)) if called(call) == "checkpoint"]
    given = (each for call in calls for each in call.keywords if each.arg == "use_reentrant")
    return next((each for each in given if getattr(each.value, "value", None) is True), None)


def readable(site: Site) -> bool:
    """Return whether the source of all lines of a site can be read."""
    return all(tree_of(frame.file) is not None for frame in site)


def _held_before(
    event: NoGradEntered, missing: Ids, slices: Collection[Slice]
) -> Iterator[tuple[Frame, Ids]]:
    """Yield blocks that compute a part of the loss from a variable whose graph contains missing parameters."""
    block = statement_at(event.site[0]) if event.site and event.held else None
    if not isinstance(block, ast.With) or without_gradients(block) is None:
        return
    used = {id(node) for each in slices for _, node in each.nodes}
    read = {
        key_of(node).lstrip(".")
        for statement in block.body
        for node in ast.walk(statement)
        if id(node) in used and isinstance(getattr(node, "ctx", None), ast.Load)
    }
    held = [ids for name, ids in event.held if name.removeprefix("self.") in read]
    ids = missing.intersection(chain(*held))
    if ids:
        yield event.site[0], ids
