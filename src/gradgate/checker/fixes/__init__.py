"""The lines to change: where a mistake has one plain mending, the edits that make it.

A mending is offered only where the lines themselves say enough: a condition that counts from 0, a call that stands
on the wrong side of another in the same block. What it leaves parses; that it mends is held against the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from gradgate.checker.fixes import _graphs, _lists, _losses, _moves
from gradgate.checker.fixes._edit import Edit, holds, mended, merged
from gradgate.checker.fixes._spot import Spot
from gradgate.checker.rules._finding import Finding

__all__ = ["Edit", "mended", "mending"]

_MENDINGS: Mapping[str, Sequence[Callable[[Finding, Spot], Sequence[Edit]]]] = {
    "GG101": (_losses.window,),
    "GG102": (_losses.scaling,),
    "GG104": (_losses.divided_again,),
    "GG105": (_losses.counted_twice,),
    "GG201": (_moves.cleared,),
    "GG202": (_moves.clears_too_early,),
    "GG203": (_moves.clears_too_late, _losses.leak),
    "GG301": (_moves.advances_elsewhere,),
    "GG302": (_moves.clips_elsewhere, _lists.a_list),
    "GG303": (_moves.scaled,),
    "GG304": (_moves.steps_too_early, _graphs.in_place, _graphs.not_rounded),
    "GG402": (_graphs.with_its_graph,),
    "GG403": (_graphs.not_rounded,),
    "GG404": (_graphs.away_from_zero,),
    "GG405": (_graphs.without_gradients,),
    "GG501": (_lists.added,),
    "GG502": (_lists.made_later,),
    "GG503": (_lists.once,),
    "GG504": (_lists.made_once,),
    "GG505": (_moves.evaluates_what_is_frozen, _moves.frozen_for_good),
    "GG601": (_graphs.let_go,),
    "GG602": (_moves.mode,),
}


def mending(finding: Finding) -> tuple[Edit, ...]:
    r"""Return the edits that mend a finding.

    They are read off the file as it is now; nothing is written. :func:`mended` makes them.

    Args:
        finding: what a rule has found.

    Returns:
        edits of the finding's file, one for each line that changes, in order; () where there is no plain mending,
        or no source.

    Example:
        >>> import pathlib, tempfile
        >>> script = pathlib.Path(tempfile.mkdtemp()) / "train.py"
        >>> text = "for x in data:\n    loss(x).backward()\n    opt.zero_grad()\n    opt.step()\n"
        >>> _ = script.write_text(text)
        >>> finding = Finding("GG202", "zero-grad-misplaced", "error", str(script), 3, "", "", "")
        >>> print(*mended(text.splitlines(), mending(finding)), sep="\n")
        for x in data:
            loss(x).backward()
            opt.step()
            opt.zero_grad()
    """
    spot = Spot.of(finding)
    if spot is None:
        return ()
    for find in _MENDINGS.get(finding.code, ()):
        edits = merged(find(finding, spot))
        if edits and holds(finding.file, edits):
            return edits
    return ()
