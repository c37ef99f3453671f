"""``gradgate check --fix`` and ``--diff``: the edits of a report, made or printed."""

import subprocess
from pathlib import Path

import pytest

from gradgate.checker.fixes import Edit, patch, rewritten_files
from tests.interpreter import python

WRONG = """\
import sys
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(10, 8, 4)
for i, x in enumerate(data):
    (model(x).square().mean() / 4).backward()
    if i % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
print("trained", sys.argv[1:])
"""
FIXED = WRONG.replace("mean() / 4", "mean() / min(4, len(data) - i // 4 * 4)").replace(
    "i % 4 == 0", "(i + 1) % 4 == 0 or i + 1 == len(data)"
)


def check(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "gradgate", "check", *arguments, cwd=folder)


def test_fix_makes_the_edits_keeps_the_file_and_checks_again(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WRONG, "utf-8")
    asked = check(tmp_path, "--fix", "train.py")
    assert asked.returncode == 1
    assert "Pass --yes to make these edits" in asked.stderr
    assert script.read_text("utf-8") == WRONG

    done = check(tmp_path, "--fix", "--yes", "train.py", "--fix")  # the last one is the script's
    assert done.stdout.count("trained ['--fix']") == 2
    assert "No mistakes found" in done.stdout.partition("+++ b/train.py")[2]
    assert done.returncode == 0, done.stdout
    assert script.read_text("utf-8") == FIXED
    assert (tmp_path / "train.py.orig").read_text("utf-8") == WRONG


def test_edits_that_make_the_script_fail_are_undone(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    text = f"{WRONG}assert open(__file__).read().count('if i % 4 == 0') == 2\n"
    script.write_text(text, "utf-8")
    done = check(tmp_path, "--fix", "--yes", "train.py")
    verdict = "With these edits, train.py failed with exit code 1 after 3 steps. The edits are undone."
    assert verdict in done.stdout
    assert "No mistakes found" not in done.stdout
    assert done.stderr.endswith(
        "First fix GG101 at train.py:9 by hand. The script fails with this edit alone.\n"
    )
    assert done.returncode == 1
    assert {path.name: path.read_text("utf-8") for path in tmp_path.glob("*.py*")} == {"train.py": text}


NEEDS_ANOTHER = """\
import torch

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
average = torch.zeros(1)
for _ in range(12):
    out = model(torch.randn(8, 4))
    average = 0.9 * average + out.square().mean()
    loss = out.abs().mean() + average.detach()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_a_mistake_that_an_edit_cannot_do_without_is_to_be_fixed_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NEEDS_ANOTHER, "utf-8")
    done = check(tmp_path, "--fix", "--yes", "train.py")
    assert "\n-    loss = out.abs().mean() + average.detach()\n" in done.stdout
    assert "train.py failed with exit code 1" in done.stdout
    assert done.stderr.endswith(
        f"Restored {tmp_path / 'train.py'}.\n"
        "First fix GG601 at train.py:8, which offers no edit. The edits above may need it.\n"
    )


TWO_MISTAKES = """\
import torch

model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
total = 0
for i in range(48):
    loss = model(torch.randn(8, 4)).square().mean() / 4
    loss.backward()
    total += loss
    if i % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
text = open(__file__).read()
retains, late = "+= loss" + chr(10) in text, chr(10) + "    if i % 4" in text
"""


@pytest.mark.parametrize(
    ("needed", "first"),
    [
        ("retains", "GG601 at train.py:9 by hand. The script fails with this edit alone."),
        (
            "retains or late",
            "GG601 at train.py:9 and GG101 at train.py:10 by hand. "
            "The script fails only with these edits together.",
        ),
    ],
)
def test_of_several_edits_those_that_make_the_script_fail_are_named(
    tmp_path: Path, needed: str, first: str
) -> None:
    script, page = tmp_path / "train.py", tmp_path / "report.txt"
    text = f"{TWO_MISTAKES}assert {needed}\n"
    script.write_text(text, "utf-8")
    done = check(tmp_path, "--fix", "--yes", "--output", "report.txt", "train.py")
    assert done.stderr.endswith(
        f"Restored {script}.\nChecking the edits of 2 findings, to see which of them fail.\nFirst fix {first}\n"
    )
    assert script.read_text("utf-8") == text
    assert "With these edits, train.py failed with exit code 1" in page.read_text(
        "utf-8"
    )  # not a trial's report


def test_edits_of_a_script_that_failed_before_are_kept(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"{WRONG}sys.exit(3)\n", "utf-8")
    done = check(tmp_path, "--fix", "--yes", "train.py")
    assert (
        "train.py failed with exit code 3 after 3 steps. No mistakes found up to that point." in done.stdout
    )
    assert done.returncode == 3
    assert script.read_text("utf-8") == f"{FIXED}sys.exit(3)\n"


def test_diff_prints_one_patch_that_git_applies(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WRONG, "utf-8")
    done = check(tmp_path, "--diff", "--output", "fixes.patch", "train.py")
    assert done.returncode == 1
    assert script.read_text("utf-8") == WRONG
    subprocess.run(["git", "apply", "fixes.patch"], cwd=tmp_path, check=True)
    assert script.read_text("utf-8") == FIXED


def test_line_ends_stay_as_they_are(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_bytes("# ü\r\na()\r\nb()".encode())
    (file,) = rewritten_files([(str(script), (Edit(2, ("c()",)),))])
    assert file.after == "# ü\r\nc()\r\nb()"


def test_of_two_findings_that_change_a_line_the_first_is_fixed(tmp_path: Path) -> None:
    script = tmp_path / "a.py"
    script.write_text("a()\nb()\n", "utf-8")
    edits = [(Edit(1, ("c()",)),), (Edit(1, ("d()",)), Edit(2)), (Edit(2, ("e()",)),)]
    (file,) = rewritten_files((str(script), each) for each in edits)
    assert file.after == "c()\ne()\n"
    assert patch([file]).endswith("@@ -1,2 +1,2 @@\n-a()\n-b()\n+c()\n+e()\n")


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    assert rewritten_files([(str(tmp_path / "gone.py"), (Edit(1),))]) == []
