"""Write the log before exits that skip Python's cleanup: os._exit, os.exec*, SIGTERM."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any, NoReturn

from gradgate.checker.running import _process
from gradgate.checker.running._imports import after_import

_exit, _execv, _execve = os._exit, os.execv, os.execve
_os: Any = os


def guard_exits() -> None:
    """Make this process write its log however it ends, and make its child processes join the run."""
    if os._exit is not _exit:
        return
    _os._exit, _os.execv, _os.execve = _leave, _execute, _execute
    after_import("subprocess", _hook_into_popen)


def guard_termination() -> None:
    """In the process that the user started, report before SIGTERM ends it."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=give_back_termination)


def give_back_termination() -> None:
    """Restore the handler of SIGTERM. Python allows this only in the main thread; in others, do nothing."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGTERM) == _terminated:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _leave(status: int) -> NoReturn:
    _exit(_process.report_end("failed" if status else "finished", status))


def _execute(path: Any, arguments: Any, environment: Any = None) -> None:
    """Replace this process by another program, or run the program as a child if this process must report later."""
    settings = _process.state.settings
    if settings is not None and not _process.state.is_child:
        import subprocess

        code = subprocess.run(
            list(arguments), executable=path, env=environment, close_fds=False, check=False
        ).returncode
        _leave(code if code >= 0 else 128 - code)  # like a shell, report 128 + the signal's number
    _process.report_end("finished", 0)
    if environment is None:
        _execv(path, arguments)
    else:
        _execve(path, arguments, settings.given_to(environment) if settings is not None else environment)


def _terminated(number: int, _: FrameType | None) -> None:
    _process.report_end("interrupted", 128 + number)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _hook_into_popen() -> None:
    """Make processes that are started with an explicit ``env`` join the run, too."""
    import subprocess
    from functools import wraps

    start: Any = subprocess.Popen.__init__

    @wraps(start)
    def __init__(process: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        settings = _process.state.settings
        if settings is not None and kwargs.get("env") is not None:
            kwargs["env"] = settings.given_to(kwargs["env"])
        start(process, *args, **kwargs)

    subprocess.Popen.__init__ = __init__  # type: ignore[assignment,method-assign]
