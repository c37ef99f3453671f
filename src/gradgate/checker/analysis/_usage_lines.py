"""Finds the lines that create and use parameters."""

from __future__ import annotations

from collections.abc import Iterable

from gradgate.events import Frame, Parameter, Site


def made_line(parameter: Parameter, like: Iterable[Parameter]) -> Frame:
    """Return the innermost line that made a parameter but not the parameters that it replaced."""
    others = {frame for other in like for frame in other.made}
    return next((frame for frame in parameter.made if frame not in others), parameter.made[0])


def calling_line(sites: Iterable[Site], backward: Site) -> Frame | None:
    """Return the innermost line outside of modules that all uses of some parameters share.

    If the uses share no line, return the line of the first use.
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
