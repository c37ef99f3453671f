"""Python as a subprocess, started quickly: a fork of an interpreter that has already imported torch.

Importing torch, its compiler and gradgate takes three seconds of a core; most scripts of the tests train for
milliseconds. :func:`python` replaces ``subprocess.run([sys.executable, ...])`` where a test is about what a program
does. A test about the interpreter itself (when torch is imported, what a fresh ``sys.modules`` holds, the warnings
of an import) starts a real one.
"""

import atexit
import contextlib
import gc
import importlib
import json
import multiprocessing.process
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

# What a checked script, the checker and its reports, and the ranks of a test import.
PRELOADED = [
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "gradgate.accumulation",
    "gradgate.checker.recording",
    "gradgate.checker.reports",
    "gradgate.checker.rules",
    "gradgate.checker.running",
    # private: the command imports them when it is used
    "gradgate.cli._app",
    "gradgate.cli._check",
    "gradgate.planning",
    "hypothesis",
    "pytest",
    "rich.console",
    "sklearn.datasets",
    "typer",
]

WARNINGS_ARE_ERRORS = ["-W", "error"]

Completed = subprocess.CompletedProcess[str]


def python(
    *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None, timeout: float = 120
) -> Completed:
    """Run ``python ARGUMENTS`` and return its output and exit code, as ``subprocess.run`` does.

    A script, ``-m module`` and ``-c program`` run in a fork, after ``-W error`` too. With other options or other
    ``PYTHON...`` variables, and where processes cannot be forked, a real interpreter runs.
    """
    words = [str(argument) for argument in arguments]
    env = dict(os.environ if env is None else env)
    first = words[2 if words[:2] == WARNINGS_ARE_ERRORS else 0]
    if first.startswith("-") and first not in ("-m", "-c"):
        return _started(words, cwd, env, timeout)
    warm = _Warm.get() if hasattr(os, "fork") else None
    if warm is None or warm.settings != _settings(env):
        return _started(words, cwd, env, timeout)
    return warm.run(words, cwd, env, timeout)


def _started(words: list[str], cwd: Path, env: dict[str, str], timeout: float) -> Completed:
    return subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=env,
        timeout=timeout,
        capture_output=True,
        text=True,
        check=False,
    )


def _settings(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter reads before it runs anything."""
    return {
        name: value
        for name, value in env.items()
        if name.startswith(("PYTHON", "OMP_")) and name != "PYTHONIOENCODING"  # that a fork can follow
    }


class _Warm:
    """The interpreter that is forked. It runs nothing itself and has a single thread, so a fork is whole."""

    _only: "_Warm | None" = None

    @classmethod
    def get(cls) -> "_Warm":
        if cls._only is None:
            cls._only = cls()
            atexit.register(cls._only.end)
        return cls._only

    def __init__(self) -> None:
        self.settings = _settings(os.environ)
        self._control, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,  # as in the forks: a stream remembers whether it can be rewound
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
        assert process.stdout is not None
        self._process, self._output = process, process.stdout

    def end(self) -> None:
        self._control.close()
        self._output.close()
        self._process.wait()

    def run(self, words: list[str], cwd: Path, env: dict[str, str], timeout: float) -> Completed:
        pipes = [os.pipe(), os.pipe()]
        request = json.dumps({"words": words, "cwd": str(cwd), "env": env}).encode() + b"\n"
        socket.send_fds(self._control, [request], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        pid = int(self._answer())
        try:
            out, err = _everything([read for read, _ in pipes], time.monotonic() + timeout)
        except TimeoutError as error:
            os.kill(pid, signal.SIGKILL)
            self._answer()
            raise subprocess.TimeoutExpired(words, timeout) from error
        finally:
            for read, _ in pipes:
                os.close(read)
        return subprocess.CompletedProcess(words, int(self._answer()), out, err)

    def _answer(self) -> bytes:
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._control.recv(64)
            assert part, f"the interpreter that is forked has ended: {self._output.read().decode()}"
            answer += part
        return answer


def _everything(readable: Sequence[int], until: float) -> list[str]:
    """Read from pipes until nobody holds their other ends."""
    read: dict[int, bytes] = dict.fromkeys(readable, b"")
    with selectors.DefaultSelector() as selector:
        for pipe in readable:
            selector.register(pipe, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(until - time.monotonic())
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                part = os.read(key.fd, 65536)
                read[key.fd] += part
                if not part:
                    selector.unregister(key.fd)
    return [text.decode() for text in read.values()]


def _serve(control: socket.socket) -> dict[str, Any]:
    """Fork for every request, and return it in the child. The parent never returns."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; this one ends with the tests
    gc.disable()
    for name in PRELOADED:
        importlib.import_module(name)
    sys.modules["gradgate.checker.rules"].rules()  # imports each of them
    # private: only the command parses a line, and typer imports a part of itself when it does
    sys.modules["gradgate.cli._app"].parse(["check", "train.py"])
    watcher = sys.modules["gradgate.checker.recording"].Watcher()
    watcher.start()  # learns which modules import none of the watched functions
    watcher.stop()
    gc.collect()
    gc.freeze()  # a fork that collects garbage would otherwise visit, and so copy, all that was imported
    gc.enable()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 65536, 2)
        while message and not message.endswith(b"\n"):
            message += control.recv(65536)
        if not message:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            control.close()
            for number, descriptor in enumerate(descriptors, start=1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            request: dict[str, Any] = json.loads(message)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        control.sendall(b"%d\n" % pid)
        _, status = os.waitpid(pid, 0)
        control.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _become(words: list[str], cwd: str, env: dict[str, str]) -> None:
    """Run what ``python WORDS`` runs, as ``__main__``."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if "PYTHONIOENCODING" in env:
        sys.stdout.reconfigure(encoding=env["PYTHONIOENCODING"])  # type: ignore[union-attr]
        sys.stderr.reconfigure(encoding=env["PYTHONIOENCODING"], errors="backslashreplace")  # type: ignore[union-attr]
    sys.orig_argv = [sys.executable, *words]
    sys.path.pop(0)  # the folder of this file
    multiprocessing.process.ORIGINAL_DIR = cwd  # from where a spawned child looks for the script
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if words[:2] == WARNINGS_ARE_ERRORS:
        warnings.simplefilter("error")
        words = words[2:]
    kind = words[0]
    if kind == "-m":
        import runpy

        sys.argv = ["-m", *words[2:]]
        sys.path.insert(0, cwd)
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    if kind == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        program, file = words[1], "<string>"
    else:
        sys.argv = words
        script = Path(kind)
        sys.path.insert(0, str(script.resolve().parent))
        program, file = script.read_text("utf-8"), str(Path(cwd, kind))
        vars(main).update(__file__=file, __cached__=None)
    vars(main)["__builtins__"] = sys.modules["builtins"]
    exec(compile(program, file, "exec"), vars(main))


def _run_and_end(request: dict[str, Any]) -> NoReturn:
    """Run a program and end as an interpreter does, without the seconds for taking torch's modules apart."""
    code: Any = 0
    try:
        _become(**request)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001
        kind, error, trace = sys.exc_info()
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(kind, error, trace)  # type: ignore[arg-type]
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if code is not None and not isinstance(code, int):
        print(code, file=sys.stderr)
        code = 1
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # None, closed
            stream.flush()
    os._exit((code or 0) & 0xFF)


if __name__ == "__main__":
    _run_and_end(_serve(socket.socket(fileno=int(sys.argv[1]))))
