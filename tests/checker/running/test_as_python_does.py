"""A script under watch prints what it prints under python, to both streams, and its report follows."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

SCRIPTS = {
    "where it is": (
        "import os, sys\n"
        "print(__name__, __file__, __doc__, __package__, getattr(__spec__, 'name', None))\n"
        "print(__builtins__, __annotations__, sorted(globals()), type(__loader__).__name__)\n"
        "print(sys.argv, sys.path[0], os.getcwd())\n"
        "print(sys.modules['__main__'].__dict__ is globals(), 'torch' in sys.modules)\n"
    ),
    "pickle": (
        '"""With a docstring."""\n'
        "import pickle, inspect\n"
        "class Config:\n"
        "    lr: float = 0.1\n"
        "print(pickle.loads(pickle.dumps(Config())).lr, inspect.getsource(Config))\n"
    ),
    "last words": (
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'registered')\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        "f = open('left_open.txt', 'w'); f.write('text')\n"
        "print('end', threading.active_count())\n"
    ),
    "error": (
        "def inner():\n    return [][3]\n"
        "def outer():\n    try:\n        inner()\n"
        "    except IndexError as e:\n        raise ValueError('no') from e\n"
        "outer()\n"
    ),
    "error of its own hook": "import sys\nsys.excepthook = lambda *a: print('hook', a[1])\nraise KeyError('x')\n",
    "syntax": "x = (\n",
    "text as exit": "import sys\nsys.exit('bad data')\n",
    "exit 3": "raise SystemExit(3)\n",
    "import": "import helper\nprint(helper.value)\nimport missing_module\n",
    "warning": "import warnings\nwarnings.warn('old', DeprecationWarning)\n",
    "group": "raise SystemExit\n",
}


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables: Mapping[str, str] = {**os.environ, "PYTHONWARNINGS": "", **environment}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, env=variables, check=False
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pack" / "inner").mkdir(parents=True)
    (tmp_path / "helper.py").write_text("value = 'of the folder'\n", "utf-8")
    (tmp_path / "pack" / "helper.py").write_text("value = 'of the package'\n", "utf-8")
    (tmp_path / "pack" / "__init__.py").write_text("", "utf-8")
    return tmp_path


def same(folder: Path, command: list[str]) -> None:
    plain = run(command, folder)
    watched = run(["-m", "gradgate", "check", *command], folder)
    assert watched.stdout.startswith(plain.stdout)
    assert watched.stderr == plain.stderr
    report = watched.stdout[len(plain.stdout) :]
    assert watched.returncode == plain.returncode
    failed = f"failed with exit code {plain.returncode} before training began."
    assert (failed if plain.returncode else "Nothing to check:") in report


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(folder: Path, name: str) -> None:
    (folder / "pack" / "train.py").write_text(SCRIPTS[name], "utf-8")
    same(folder, ["./pack/train.py", "--lr", "0.1", "-m", "--", "--help"])


@pytest.mark.parametrize("name", ["where it is", "error", "pickle", "import"])
def test_a_module(folder: Path, name: str) -> None:
    (folder / "pack" / "train.py").write_text(SCRIPTS[name], "utf-8")
    same(folder, ["-m", "pack.train", "--lr", "0.1", "--form", "x"])


def test_a_folder_with_a_main(folder: Path) -> None:
    (folder / "pack" / "__main__.py").write_text(SCRIPTS["where it is"] + SCRIPTS["import"], "utf-8")
    same(folder, ["pack", "1"])


def test_a_link_to_a_script(folder: Path) -> None:
    (folder / "pack" / "train.py").write_text(SCRIPTS["where it is"] + SCRIPTS["import"], "utf-8")
    (folder / "link.py").symlink_to(folder / "pack" / "train.py")
    same(folder, ["link.py"])


def test_what_a_script_says_last_comes_before_the_report(folder: Path) -> None:
    (folder / "train.py").write_text(SCRIPTS["last words"], "utf-8")
    watched = run(["-m", "gradgate", "check", "train.py"], folder)
    assert watched.stdout.splitlines()[:3] == ["end 2", "thread", "registered"]
    assert watched.stdout.splitlines()[3].startswith("Nothing to check:")
    assert (folder / "left_open.txt").read_text("utf-8") == "text"


def test_variables_that_are_set_before_torch_is_imported_count(folder: Path) -> None:
    program = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())\n"
    (folder / "train.py").write_text(program, "utf-8")
    watched = run(["-m", "gradgate", "check", "train.py"], folder, OMP_NUM_THREADS="2")
    assert watched.stdout.splitlines()[0] == "1"
