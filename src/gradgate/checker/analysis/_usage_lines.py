"""The lines that create and use parameters."""

from __future__ import annotations

from collections.abc import Iterable

from gradgate.events import Frame, Parameter, Site


def made_line(parameter: Parameter, like: Iterable[Parameter]) -> Frame:
    """Return the line that made a parameter: the innermost one that did not also make the ones it replaced."""
    others = {frame for other in like for frame in other.made}
    return next((frame for frame in parameter.made if frame not in others), parameter.made[0])


def calling_line(sites: Iterable[Site], backward: Site) -> Frame | None:
    """Return the line that used some parameters: the innermost one outside of modules that all uses share.

    If the uses share no line, it is the line of the first use.
    """
    several = [site for site in sites if site]
    if not several:
        return None
    shared = [
        frame for frame in several[0] if all(frame in site for site in several) and frame not in backward
    ]
    lines = shared or [frame for frame in several[0] if frame not in backward] or list(several[0])
    outside = [frame for frame in lines if frame.function not in ("forward", "__call__")]
    return (outside or lines)[0]
