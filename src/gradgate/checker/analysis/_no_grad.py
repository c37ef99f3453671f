"""Lines that switch gradients off and thereby cut off what the optimizer is to train."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import key_of, no_grad_around, without_gradients
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import path_to, tree_of
from gradgate.events import Cut, Frame, Ids, NoGradEntered, Ran, Site


def off_in_blocks(run: Run, missing: Ids, slices: Collection[Slice]) -> Iterator[tuple[Frame, Ids]]:
    """Yield lines that switch gradients off, with the parameters that are cut off there.

    Their module ran only within the block, or it gave the block something that the loss is made of. What a loss is
    made of is read in the source; where that cannot be read, it has to do that a module in the block was given it.
    """
    recorded = frozenset().union(*(event.parameters for event in run.of(Ran) if event.recording))
    for number, event in run.numbered(Ran, Cut, NoGradEntered):
        if isinstance(event, NoGradEntered):
            yield from _carried(event, missing, slices)
            continue
        if isinstance(event, Cut):
            ids = event.parameters & missing if event.op == "no_grad" else frozenset()
            wanted = bool(ids) and (_made_of(event.site, slices) or not readable(event.site))
        else:
            ids = event.parameters & missing - recorded if not event.recording else frozenset()  # type: ignore[attr-defined]
            wanted = bool(ids)
        line = block_around(run, number) if wanted else None
        if line is not None:
            yield line, ids


def block_around(run: Run, number: int) -> Frame | None:
    """Return the line that switches gradients off for an event.

    It is read in the source; where that cannot be read, it is where such a block was last entered on the way.
    """
    site = run.events[number].site
    line = next(filter(None, map(no_grad_around, site)), None)
    if line is not None or readable(site):
        return line
    for event in reversed(run.events[:number]):
        if isinstance(event, NoGradEntered) and event.site:
            frame, outer = event.site[0], event.site[1:]
            for place, inner in enumerate(site):
                same = (frame.file, frame.function) == (inner.file, inner.function) and outer == site[
                    place + 1 :
                ]
                if same and (frame.line < inner.line or (place and frame.line == inner.line)):
                    return frame
    return None


def readable(site: Site) -> bool:
    """Say whether all lines of a site stand in source that can be read."""
    return all(tree_of(frame.file) is not None for frame in site)


def _made_of(site: Site, slices: Collection[Slice]) -> bool:
    return any(one.holds(frame) for one in slices for frame in site[:1])


def _carried(event: NoGradEntered, missing: Ids, slices: Collection[Slice]) -> Iterator[tuple[Frame, Ids]]:
    """Yield a block that makes a part of the loss of a name which held such parameters' graph when it began."""
    frame = event.site[0] if event.site and event.held else None
    block = path_to(frame.file, frame.line)[-1:] if frame is not None else ()
    if (
        frame is None
        or not block
        or without_gradients(block[0]) is None
        or not isinstance(block[0], ast.With)
    ):
        return
    used = {id(node) for one in slices for _, node in one.nodes}
    read = {
        key_of(node).lstrip(".")
        for statement in block[0].body
        for node in ast.walk(statement)
        if id(node) in used and isinstance(getattr(node, "ctx", None), ast.Load)
    }
    ids = frozenset(one for name, held in event.held for one in held if name.removeprefix("self.") in read)
    if ids & missing:
        yield frame, ids & missing
