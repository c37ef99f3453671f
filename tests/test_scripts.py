"""The corpus of scripts: each runs, computes the same to the bit while watched, and gets the right findings.

A wrong script gets a finding of its category on the line that it marks, and no warning or error of another one; a
right script gets none at all. With its fix made, a wrong script runs, and its mistake is found no more. The index
of the corpus tells what a script gets instead. The suite runs the regression set, `make corpus` all scripts.
"""

import contextlib
import hashlib
import io
import os
import re
import runpy
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from corpus.scripts import FOLDER, Script, marked_lines, scripts
from gradgate.checker.fixes import apply, edits_for
from gradgate.checker.recording import Watcher
from gradgate.checker.reports import report_on

# private: the notes on what no step moves, apart from what could not be seen
from gradgate.checker.reports._unmoved import unmoved
from gradgate.checker.rules import RETIRED, Finding, check, rules
from gradgate.events import Gap, Log, OptimizerMade, Stepped
from tests import pages

ROWS = {script.path: script for script in scripts("own")}
WRONG = [script for script in ROWS.values() if script.is_wrong]
RIGHT = [script for script in ROWS.values() if not script.is_wrong]
CHOSEN = [row for row in ROWS.values() if row.regression or os.environ.get("GRADGATE_CORPUS") == "all"]
SHOWN = pages.shown_scripts("corpus/")
GAPS = (0.31, 0.47, 0.63)  # where the log of a right script has a gap

# What a message counts, as its finding does.
COUNTED = re.compile(
    r"(\d+) of \d+ (?:watched )?(?:steps|backward calls|calls|windows)\b|in (?:at least )?(\d+) steps\b|"
    r"in each of (\d+) |constructed (\d+) times|after (\d+) backward calls"
)

# What is not to move: the fix keeps it as it is.
CANCELS = {"D.2.bias", "gan.disc.4.bias"}  # in the difference of a critic's two means
STILL = {"frozen-state-drift", "wasted-gradient"}


@dataclass
class Outcome:
    script: Path
    printed: str
    computed: str
    exit_code: object
    findings: list[Finding]
    log: Log | None = None


def at_a_mark(finding: Finding, script: Path) -> bool:
    """Return whether a finding is at a line marked with its category, or at a line of the same statement."""
    lines = marked_lines(script.read_text("utf-8"))
    return finding.file == str(script) and lines.get(finding.line) == finding.category


def run(script: Path, *, watch: bool) -> Outcome:
    """Run a script as python does, in a folder of its own; return what it did and what is found."""
    watcher = Watcher(str(script), strict=True)
    exit_code: object = None
    variables: dict[str, Any] = {}
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(sys, "argv", ["train.py"])
        patch.chdir(folder)
        torch.manual_seed(0)
        if watch:
            watcher.start()
        try:
            with contextlib.redirect_stdout(printed), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a wrong script may well be warned of by torch
                variables = runpy.run_path(str(script), run_name="__main__")
        except SystemExit as end:
            exit_code = end.code
        finally:
            watcher.stop()
            state = torch.get_rng_state()
            torch.set_default_dtype(torch.float32)
            torch.set_grad_enabled(True)
            if "torch._dynamo" in sys.modules:
                torch._dynamo.reset()  # where something is compiled, less is looked at: one script's affair
    digest = hashlib.sha256(state.numpy().tobytes())
    for tensor in tensors(variables):
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    log = watcher.log() if watch else None
    found = check(log, strict=True) if log is not None else []
    return Outcome(script, printed.getvalue(), digest.hexdigest(), exit_code, found, log)


def with_a_gap(log: Log, part: float) -> Log:
    """Return a log as it is of a long run, of which the middle is not kept."""
    first, last = int(len(log.events) * part), int(len(log.events) * (part + 0.17))
    return replace(log, events=(*log.events[:first], Gap((), last - first), *log.events[last:]))


def tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """Yield the tensors of a script's variables, in a fixed order: those of modules and optimizers too."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
        yield from tensors(value.state_dict(), depth)
    elif isinstance(value, dict) and depth < 6:
        for key in sorted(value, key=str):
            if not str(key).startswith("__"):
                yield from tensors(value[key], depth + 1)
    elif isinstance(value, (list, tuple)) and depth < 6:
        for item in value:
            yield from tensors(item, depth + 1)
    elif depth == 1 and type(value).__module__ == "__main__":
        yield from tensors(vars(value) if hasattr(value, "__dict__") else None, depth + 1)


@pytest.fixture(scope="module")
def watched(request: pytest.FixtureRequest) -> Outcome:
    """A watched run, which the tests of its script share: pytest runs them one after the other."""
    return run(request.param.path, watch=True)


def of_each(rows: list[Script]) -> pytest.MarkDecorator:
    names = [row.script for row in rows]
    return pytest.mark.parametrize("watched", rows, indirect=True, ids=names, scope="module")


@of_each(CHOSEN)
def test_a_script_computes_the_same_watched_or_not_and_gets_its_findings(watched: Outcome) -> None:
    script, row = watched.script, ROWS[watched.script]
    plain = run(script, watch=False)
    assert not plain.exit_code
    assert watched.printed == plain.printed
    assert watched.computed == plain.computed
    if not row.is_wrong:
        assert watched.log is not None
        part = GAPS[RIGHT.index(row) % len(GAPS)]
        for findings in (watched.findings, check(with_a_gap(watched.log, part), strict=True)):
            assert [finding for finding in findings if finding.severity != "info"] == []
        assert list(unmoved(watched.log)) == row.gradgate.get("unmoved", [])
        return
    for finding in watched.findings:
        assert {
            int(number) for groups in COUNTED.findall(finding.message) for number in groups if number
        } <= {finding.count}
    of_category = [finding for finding in watched.findings if finding.category == row.category]
    at_the_line = [finding for finding in of_category if at_a_mark(finding, script)]
    others = [finding for finding in watched.findings if finding.category != row.category]
    accused = {finding.code for finding in others if finding.severity != "info"}
    assert accused == set(row.gradgate.get("other_rules", []))  # one cause, one finding
    assert bool(of_category) == ("missed" not in row.gradgate)
    assert bool(at_the_line) == row.gradgate.keys().isdisjoint({"missed", "other_line"})


TRUNCATED = ["leaky_units", "moving_center"]


def parts(log: Log | None) -> tuple[set[str], set[str]]:
    """Return the parameters that moved, and the trainable ones that stepping optimizers left as they were."""
    assert log is not None
    stepping = {event.optimizer for event in log.events if isinstance(event, Stepped)}
    made = [event for event in log.events if isinstance(event, OptimizerMade) and event.optimizer in stepping]
    held = {number for event in made for group in event.groups for number in group.parameters}
    moved = {each.name for each in log.parameters.values() if not each.still}
    left = {log.parameters[number].name for number in held if log.parameters[number].trainable}
    return moved, left - moved


@of_each([row for row in CHOSEN if row.is_wrong])
def test_a_script_with_its_fix_made_shows_no_mistake_and_trains(watched: Outcome, tmp_path: Path) -> None:
    script, row = watched.script, ROWS[watched.script]
    category = row.category
    edits = [edit for one in watched.findings if one.category == category for edit in edits_for(one)]
    assert bool(edits) == ("edit" in row.gradgate)
    if not edits:
        return
    copy = tmp_path / script.name
    copy.write_text("\n".join(apply(script.read_text("utf-8").splitlines(), edits)) + "\n", "utf-8")
    fixed = run(copy, watch=True)
    assert not fixed.exit_code
    if category not in STILL:
        (before, idle), (after, idle_after) = parts(watched.log), parts(fixed.log)
        assert before - after <= CANCELS
        assert idle_after - idle <= CANCELS
    # These cost time and memory, and compute the same. A state that passed gradients back no longer does.
    if category in ("wasted-gradient", "graph-retention") and script.stem not in TRUNCATED:
        assert (fixed.printed, fixed.computed) == (watched.printed, watched.computed)
    # The note that retain_graph is no longer needed follows the edit of a state.
    of_category = category if script.stem not in TRUNCATED else ""
    left = [one.code for one in fixed.findings if one.severity != "info" or one.category == of_category]
    assert left == []  # no edit brings up the next mistake


@of_each([ROWS[path] for path in SHOWN])
def test_the_page_of_a_rule_shows_what_is_printed(
    watched: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert watched.log is not None
    monkeypatch.chdir(tmp_path)
    printed = pages.as_train_py(report_on([watched.log]), watched.script, tmp_path)
    assert SHOWN[watched.script] in printed, "make the pages anew: python tools/rule_pages.py"


def test_what_a_script_computes_is_compared(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\nw = torch.zeros(3)\n")
    first = run(script, watch=False)
    script.write_text("import torch\nw = torch.full((3,), 1e-45)\n")
    assert run(script, watch=False).computed != first.computed


IN_A_CONTAINER = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    out = model(torch.randn(16, 4))
    losses = {{"fit": out.square().mean()}}
    losses["size"] = out.abs().mean()
    loss = {total}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "total",
    [
        "sum(losses.values())",
        'sum([losses["fit"], losses["size"].detach()])',
        'sum({"fit": losses["fit"], "size": losses["size"].detach()}.values())',
        'sum({**losses, "size": losses["size"].detach()}.values())',
        'torch.stack((-losses["fit"], -losses["size"].detach())).sum()',
    ],
    ids=["right", "list", "dict", "unpacked dict", "negated"],
)
def test_a_constant_among_the_losses_of_a_container_is_found(tmp_path: Path, total: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(IN_A_CONTAINER.format(total=total), "utf-8")
    found = [(each.category, each.line) for each in run(script, watch=True).findings]
    assert found == ([("broken-graph", 9)] if "detach" in total else [])


def test_a_wrong_script_marks_the_line_to_change_and_a_right_one_none() -> None:
    for row in ROWS.values():
        text = row.path.read_text("utf-8")
        assert text.count("# expect") == len(re.findall(r"  # expect: [a-z-]+$", text, re.MULTILINE)), (
            row.script
        )
        assert set(row.marked_lines.values()) == ({row.category} if row.is_wrong else set()), row.script


def test_the_index_has_a_row_for_each_script() -> None:
    assert sorted(ROWS) == sorted([*FOLDER.glob("wrong/*/*.py"), *FOLDER.glob("right/*/*.py")])
    assert len(ROWS) == len(scripts("own"))
    codes = {rule.name: rule.code for rule in rules()} | {name: code for code, (name, _) in RETIRED.items()}
    made = set(re.findall(r"^- `([a-z-]+)`: ", (FOLDER / "README.md").read_text("utf-8"), re.MULTILINE))
    for path, row in ROWS.items():
        assert row.kind == path.parent.name
        assert row.code == (codes[row.category] if row.is_wrong else "")
        assert row.made in made, f"corpus/README.md does not say how {row.script} was made"
        assert bool(row.source) == (row.made == "incident")
        assert row.gradgate.keys() <= (
            {"missed", "other_line", "other_rules", "edit"} if row.is_wrong else {"unmoved"}
        )
        if row.twin:
            assert row.is_wrong
            assert not ROWS[FOLDER / f"{row.twin}.py"].is_wrong


def test_every_category_and_topic_is_in_the_regression_set() -> None:
    categories = {rule.name for rule in rules()} - {"ddp-sync"}  # tests/ranks has those: several processes
    retired = {name for name, _ in RETIRED.values()}
    chosen = [row for row in ROWS.values() if row.regression]
    assert {row.category for row in WRONG} - retired == categories
    assert {row.category for row in chosen if row.is_wrong} == categories
    assert {row.topic for row in RIGHT} == {row.topic for row in chosen if not row.is_wrong}
    assert {ROWS[path].category for path in SHOWN} == categories
    assert [path for path in SHOWN if not ROWS[path].regression] == []


def test_the_page_of_the_checker_tells_how_many_fixes_each_rule_offers() -> None:
    page = (Path(__file__).parents[1] / "docs" / "checking.md").read_text("utf-8")
    assert fix_rates() in page


def fix_rates() -> str:
    """Return the rows of docs/checking.md: of each rule's wrong scripts, those found, edited, and put right."""
    lines = []
    for rule in rules():
        rows = [row.gradgate for row in WRONG if row.category == rule.name]
        found = sum("missed" not in row for row in rows)
        offered = right = sum("edit" in row for row in rows)  # each edit is tried above
        if rows:
            lines.append(f"| {rule.code} {rule.name} | {len(rows)} | {found} | {offered} | {right} |")
    return "\n".join(lines) + "\n"
