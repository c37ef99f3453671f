"""Warnings that name the user's line, however many functions of gradgate and of libraries lie between."""

from __future__ import annotations

import sys
import warnings


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning at the innermost line of the user's code, or else at the line that called gradgate."""
    from gradgate.call_sites import kind_of, outwards, user_frames  # slow to import, and rarely needed

    callers = (frame for frame in outwards(sys._getframe(1)) if kind_of(frame.f_code.co_filename) != "ours")
    frame = next(iter(user_frames()), None) or next(callers, sys._getframe(1))
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__") or "<string>",  # for None, Python shows nothing
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
