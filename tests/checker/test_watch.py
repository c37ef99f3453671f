"""Watching a loop in one's own process."""

import json
import linecache
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import gradgate as gg
from gradgate import call_sites

# private: the caches of sources, which are empty at the start of a process
from gradgate.checker.analysis import _scopes, _source
from gradgate.checker.reports import to_json, written
from gradgate.errors import FindingError, OptionError, UpdateError
from tests.interpreter import python
from tests.messages import raises


def wrong_loop(steps: int = 3) -> int:
    """Step after the first of each four micro-batches, and return the line that is wrong."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(4 * steps):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))) / 4
        loss.backward()
        if i % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return wrong_loop.__code__.co_firstlineno + 7


def right_loop() -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(8):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(2, (8,))).backward()
        optimizer.step()


def uncleared_loop(steps: int) -> None:
    weight = nn.Parameter(torch.ones(2))
    other = nn.Parameter(torch.ones(2))
    optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([other], lr=0.1)]
    for _ in range(steps):
        (weight * other).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()


def test_a_block_reports_what_is_wrong_in_it() -> None:
    with gg.watch() as report:
        line = wrong_loop()
    assert [(finding.code, finding.file, finding.line) for finding in report.findings] == [
        ("GG101", __file__, line)
    ]
    assert (report.summary.steps, report.summary.backwards, report.summary.outcome) == (3, 12, "finished")
    assert str(report) == str(report.report)
    assert "if i % 4 == 0:" in str(report)


def test_a_right_loop_shows_nothing() -> None:
    with gg.watch(raise_on="warning") as report:
        right_loop()
    assert report.findings == ()
    assert str(report).startswith("No mistakes found.\nwatched  8 steps, 8 backward calls\n")
    assert not report.summary.too_short


def test_a_run_that_is_too_short_to_judge_is_not_called_right() -> None:
    with gg.watch() as report:
        uncleared_loop(2)
    assert report.findings == ()
    verdict = "No mistakes found, but this run is too short: some rules need 8 steps."
    assert str(report).startswith(f"{verdict}\nwatched  4 steps, 2 backward calls\n")
    assert verdict in written(report.report, "html")
    assert json.loads(to_json(report.report))["summary"]["too_short"] is True
    with gg.watch() as longer:
        uncleared_loop(3)
    assert "\nFound 1 error.\n" in str(longer)
    notes = tuple(replace(finding, severity="info") for finding in longer.findings)
    assert "\nFound 1 note. This run is too short: some rules need 8 steps.\n" in str(
        replace(longer.report, findings=notes)
    )


def test_findings_may_be_chosen() -> None:
    with gg.watch(ignore=["accumulation-window"], raise_on="warning") as report:
        wrong_loop()
    assert report.findings == ()


def test_findings_may_raise_with_the_whole_report() -> None:
    with pytest.raises(FindingError) as caught, gg.watch(raise_on="error") as report:
        wrong_loop()
    assert str(caught.value) == f"watch: the loop shows mistakes.\n\n{report}"


def test_an_error_of_the_loop_goes_on_and_is_no_finding() -> None:
    watching = gg.watch(raise_on="warning")

    def failing_loop() -> None:
        with watching:
            wrong_loop()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_loop()
    assert watching.summary.outcome == "failed"
    assert len(watching.findings) == 1


def test_it_can_be_asked_while_it_runs_and_be_started_by_hand() -> None:
    watching = gg.watch().start()
    right_loop()
    assert watching.summary.steps == 8
    right_loop()
    report = watching.stop()
    assert report is watching.stop() is watching.report
    assert watching.summary.steps == 16
    right_loop()
    assert watching.summary.steps == 16


def test_what_is_used_wrongly_is_refused() -> None:
    with raises(OptionError, "watching for an unknown severity", "'info'"):
        gg.watch(raise_on="info")  # type: ignore[arg-type]
    with raises(OptionError, "watching for an unknown rule", "'GGX'"):
        gg.watch(select="GGX")
    with gg.watch() as watching, raises(UpdateError, "a watch started twice"):
        watching.start()


FLAT = """\
import torch
from torch import nn
front, middle, back = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)
optimizer = torch.optim.SGD([*front.parameters(), *back.parameters()], lr=0.05)
for step in range(6):
    h = torch.tanh(front(torch.randn(16, 4)))
    with torch.no_grad():
        h = torch.tanh(middle(h))
    loss = back(h).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DETACHED = FLAT.replace(
    "    with torch.no_grad():\n        h = torch.tanh(middle(h))\n", "    h = h.detach()\n"
)
NORM = """\
import torch
from torch import nn
front, back = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)), nn.Linear(8, 1)
front.requires_grad_(False)
optimizer = torch.optim.SGD(back.parameters(), lr=0.05)
for step in range(6):
    loss = back(front(torch.randn(16, 4))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
LOGGED = FLAT.replace("back(h)", "back(front(torch.ones(16, 4)))").replace(
    "h = torch.tanh(middle(h))", "middle(h)"
)


@pytest.mark.parametrize("name", ["page.md", "<stdin>", "<string>", "<ipython-input-7-0a1b2c>"])
@pytest.mark.parametrize(
    ("code", "found"),
    [
        (FLAT, "GG402 7 front.weight and front.bias got no gradient in 6 steps"),
        (DETACHED, "GG402 7 front.weight and front.bias got no gradient in 6 steps"),
        (NORM, "GG505 {} 1 batch norm (front.1) that no step trains is in training mode"),
        (LOGGED, ""),
    ],
)
def test_code_that_cannot_be_read_is_judged_by_what_happened(
    code: str, found: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(call_sites._kinds, "<string>", "library")  # as at the start of a process
    for read in (_source.tree_of, _source.path_to, _scopes.functions_of, _scopes.scopes_of):
        read.cache_clear()
    if name == "page.md":  # a block of a page, run at its own line
        name = str(tmp_path / name)
        Path(name).write_text("It's a page.\n" * 20, "utf-8")
    cell = name.startswith("<ipython")
    if cell:
        monkeypatch.setitem(linecache.cache, name, (len(code), None, code.splitlines(keepends=True), name))
    with gg.watch() as report:
        exec(compile(code, name, "exec"), {"__name__": "__main__"})
    said = [f"{one.code} {one.line} {one.message}" for one in report.findings]
    # The line that freezes is read in a cell; where nothing can be read, it is where it was seen.
    found = found.format(4 if cell else 10)
    assert [text.startswith(found) for text in said] == ([True] if found else [])


def test_what_follows_python_c_is_the_users_own_code(tmp_path: Path) -> None:
    program = "import gradgate as gg\nwith gg.watch() as report:\n" + "".join(
        f"    {line}\n" for line in FLAT.splitlines()
    )
    program += "print(*[(one.file, one.line, one.code) for one in report.findings])"
    done = python("-c", program, cwd=tmp_path)
    assert done.stdout == "('<string>', 9, 'GG402')\n", done.stderr


def test_gradgate_itself_waits_for_torch_until_a_name_is_asked_for() -> None:
    program = "import gradgate, sys; print('torch' in sys.modules, 'Accumulator' in dir(gradgate)); "
    program += "gradgate.Accumulator; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\nTrue\n"


TESTS = """\
import unittest
import pytest
from tests.checker.test_watch import right_loop, wrong_loop

def test_right(gradgate_watch):
    right_loop()
    assert gradgate_watch.summary.steps == 8

def test_wrong(gradgate_watch):
    wrong_loop()

@pytest.mark.gradgate_watch(ignore="GG101")
def test_ignored(gradgate_watch):
    wrong_loop()

@pytest.mark.gradgate_watch(raise_on=None)
def test_seen(gradgate_watch):
    wrong_loop()
    assert len(gradgate_watch.findings) == 1

def test_fails_by_itself(gradgate_watch):
    wrong_loop()
    assert False, "of its own"

@pytest.mark.gradgate_watch
def test_marked():
    wrong_loop()

@pytest.mark.gradgate_watch(raise_on="eror")
def test_misspelt():
    pass

@pytest.mark.gradgate_watch("GG101")
def test_unnamed():
    pass

@pytest.mark.usefixtures("gradgate_watch")
class TestOfUnittest(unittest.TestCase):
    def test_right(self):
        right_loop()

    def test_wrong(self):
        wrong_loop()

    def test_fails(self):
        wrong_loop()
        self.fail("of its own")
"""


def test_the_fixture_fails_a_test_whose_loop_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS, "utf-8")
    done = pytest_in(tmp_path)
    assert "FAILED test_it.py::test_wrong - Failed: watch: the loop shows mistakes." in done
    assert "FAILED test_it.py::test_fails_by_itself - AssertionError: of its own" in done
    assert "GG101 accumulation-window" in done
    assert "FAILED test_it.py::test_marked - Failed: watch: the loop shows mistakes." in done
    assert (
        "ERROR test_it.py::test_misspelt - Failed: marker gradgate_watch: watch: raise_on is 'eror'" in done
    )
    assert "ERROR test_it.py::test_unnamed - Failed: marker gradgate_watch: 'GG101'" in done
    assert "ERROR test_it.py::TestOfUnittest::test_wrong - Failed: watch: the loop shows mistakes." in done
    assert "FAILED test_it.py::TestOfUnittest::test_fails - AssertionError: of its own" in done
    assert "4 failed, 5 passed, 3 errors" in done


OPTION = """\
import unittest
import pytest
import torch
from tests.checker.test_watch import right_loop, wrong_loop

@pytest.fixture
def trained():
    wrong_loop()

def test_right():
    right_loop()

def test_wrong():
    wrong_loop()

def test_without_training():
    assert torch.ones(2).sum() == 2

def test_backward_alone():
    x = torch.ones(2, requires_grad=True)
    x.sum().backward()
    assert x.grad is not None

def test_wrong_in_its_fixture(trained):
    pass

def test_asks_as_well(gradgate_watch):
    wrong_loop()

@pytest.mark.gradgate_watch(raise_on=None)
def test_let_off():
    wrong_loop()

@pytest.mark.parametrize("times", [1, 2])
def test_parameters(times):
    right_loop()

class TestOfUnittest(unittest.TestCase):
    def test_right(self):
        right_loop()

    def test_wrong(self):
        wrong_loop()
"""


def test_the_option_watches_every_test_that_trains(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(OPTION, "utf-8")
    done = pytest_in(tmp_path, "--gradgate")
    found = "Failed: watch: the loop shows mistakes."
    assert f"FAILED test_it.py::test_wrong - {found}" in done
    assert f"FAILED test_it.py::test_wrong_in_its_fixture - {found}" in done
    assert f"FAILED test_it.py::test_asks_as_well - {found}" in done
    assert f"ERROR test_it.py::TestOfUnittest::test_wrong - {found}" in done
    assert "3 failed, 8 passed, 1 error" in done


def test_the_option_takes_rules(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(OPTION, "utf-8")
    assert "11 passed" in pytest_in(
        tmp_path, "--gradgate", "--gradgate-select=GG1", "--gradgate-ignore=accumulation-window"
    )
    misspelt = pytest_in(tmp_path, "--gradgate", "--gradgate-ignore=GGX")
    assert "ERROR: --gradgate: watch: ignore: no rule has the code or category 'GGX'" in misspelt


def test_without_the_option_a_test_that_does_not_ask_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(OPTION, "utf-8")
    done = pytest_in(tmp_path)
    assert "FAILED test_it.py::test_asks_as_well" in done
    assert "1 failed, 10 passed" in done


def test_the_plugin_imports_nothing_where_it_is_not_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\ndef test_it():\n    assert not {'torch', 'gradgate.checker._watch'} & set(sys.modules)\n",
        "utf-8",
    )
    assert "1 passed" in pytest_in(tmp_path, fresh=True)


def pytest_in(folder: Path, *given: str, fresh: bool = False) -> str:
    options = [
        "-q",
        "--strict-markers",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={Path(__file__).parents[2]}",
    ]
    # In the interpreter that is forked, the plugin has been imported before pytest could rewrite its assertions.
    imported = ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    command = ["-m", "pytest", *imported, *options, *given, "test_it.py"]
    wide = {**os.environ, "COLUMNS": "200"}
    if fresh:
        wide["PYTHONHASHSEED"] = "0"  # as any other setting of python, it takes a new interpreter
    done = python(*command, cwd=folder, env=wide)
    return done.stdout + done.stderr


def test_a_loss_with_countless_paths_is_watched_in_time() -> None:
    """Each value is used twice: the only term is reached on 2**60 paths."""
    model = nn.Linear(3, 1)
    with gg.watch() as watching:
        loss = model(torch.ones(4, 3)).mean()
        for _ in range(60):
            loss = (loss + loss) / 2
        loss.backward()
    assert watching.summary.backwards == 1
