"""A fork of the interpreter that has imported torch does what a new interpreter does."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreter import python

PROGRAMS = {
    "output": "import sys; print('out'); print('error', file=sys.stderr)",
    "place": "import os, sys; print(__name__, sys.argv, sys.path[0], os.getcwd(), sys.orig_argv[1:])",
    "code": "import sys; sys.exit(3)",
    "text as code": "import sys; sys.exit('bad data')",
    "error": "def f():\n    raise ValueError('no')\n\nf()",
    "warning": "import warnings; warnings.warn('old')",
    "last words": "import atexit, threading, time\n"
    "atexit.register(print, 'registered')\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()",
    "killed": "import os; os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize(
    ("form", "options"), [("script", ["-W", "error"]), ("module", []), ("text", ["-W", "error"])]
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_does_the_same(name: str, form: str, options: list[str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAMS[name], "utf-8")
    program = {"script": ["train.py"], "module": ["-m", "train"], "text": ["-c", PROGRAMS[name]]}[form]
    words = [*options, *program, "--lr", "0.1"]
    real = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False)
    forked = python(*words, cwd=tmp_path)
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout)
    # The frames of runpy are frozen into one interpreter and not into the other.
    assert forked.stderr.splitlines()[-1:] == real.stderr.splitlines()[-1:]
    assert forked.stderr.count(str(tmp_path)) == real.stderr.count(str(tmp_path))


def test_the_encoding_of_the_output_is_that_of_the_environment(tmp_path: Path) -> None:
    program = "import sys; print('ä', file=sys.stderr); print('ä')"
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = ["-c", program]
    real = subprocess.run([sys.executable, *words], env=env, capture_output=True, text=True, check=False)
    forked = python(*words, cwd=tmp_path, env=env)
    assert (forked.returncode, forked.stdout) == (real.returncode, real.stdout) == (1, "")
    assert forked.stderr.splitlines()[0] == real.stderr.splitlines()[0] == r"\xe4"
    assert forked.stderr.splitlines()[-1] == real.stderr.splitlines()[-1]


def test_torch_is_there_already(tmp_path: Path) -> None:
    assert python("-c", "import sys; print('torch' in sys.modules)", cwd=tmp_path).stdout == "True\n"


def test_other_settings_of_python_start_a_new_interpreter(tmp_path: Path) -> None:
    program = "import sys; print('torch' in sys.modules, sys.flags.optimize)"
    assert python("-O", "-c", program, cwd=tmp_path).stdout == "False 1\n"


def test_a_program_that_hangs_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        python("-c", "import time; time.sleep(60)", cwd=tmp_path, timeout=0.5)
    assert python("-c", "print(1)", cwd=tmp_path).stdout == "1\n"
