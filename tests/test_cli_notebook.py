"""``gradgate check train.ipynb``: the code cells run in order, and findings name the cell and its line."""

import json
import subprocess
import textwrap
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.interpreter import python

SETUP = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.randn(10, 8, 4)
"""
WRONG = """\
for i, x in enumerate(data):
    (model(x).square().mean() / 4).backward()
    if i % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
LINE = 3
FIXED = WRONG.replace("mean() / 4", "mean() / min(4, len(data) - i // 4 * 4)").replace(
    "i % 4 == 0", "(i + 1) % 4 == 0 or i + 1 == len(data)"
)


def notebook(folder: Path, *cells: str, language: str = "python") -> Path:
    """Write a notebook as Jupyter does; a cell that begins with # is in Markdown."""
    made = new_notebook(metadata={"kernelspec": {"name": "k", "display_name": "k", "language": language}})
    made.cells = [(new_markdown_cell if each.startswith("# ") else new_code_cell)(each) for each in cells]
    nbformat.write(made, folder / "train.ipynb")
    return folder / "train.ipynb"


def check(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return python("-m", "gradgate", "check", *arguments, cwd=folder)


def test_a_finding_names_the_cell_that_jupyter_numbers_so_and_its_line(tmp_path: Path) -> None:
    notebook(tmp_path, "# Title", SETUP, "", f"\n\n{WRONG}", "print('trained')")
    done = check(tmp_path, "train.ipynb")
    assert (done.returncode, done.stderr) == (1, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "trained"
    assert lines[1].startswith("── train.ipynb cell 2 ──")
    assert lines[3] == f"train.ipynb cell 2, line {LINE + 2}  error  GG101 accumulation-window, 2 times"
    assert f"  ❱    {LINE + 2} │     if i % 4 == 0:" in lines
    assert "Found 1 error." in lines


def test_variables_have_the_names_that_cells_give_them(tmp_path: Path) -> None:
    loop = """\
for x in data:
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss)
"""
    notebook(tmp_path, SETUP, "losses = []\nmodel", loop)  # IPython's own objects lead to both
    done = check(tmp_path, "train.ipynb")
    assert "losses keeps the graphs of at least 8 earlier backward calls alive." in done.stdout
    assert "optimizer (SGD): 2 tensors" in done.stdout
    notebook(tmp_path, SETUP, "model", WRONG.replace("optimizer.zero_grad()", "pass"))
    found = " ".join(check(tmp_path, "train.ipynb").stdout.split())
    assert "use gradients of model.weight and model.bias" in found


def test_the_same_seed_trains_the_same_with_and_without_the_check(tmp_path: Path) -> None:
    shown = "print([p.tolist() for p in model.parameters()])"
    notebook(tmp_path, SETUP, WRONG, shown)
    alone = python("-c", f"{SETUP}\n{WRONG}\n{shown}", cwd=tmp_path)
    assert check(tmp_path, "train.ipynb").stdout.splitlines()[0] == alone.stdout.strip()


def test_json_has_the_notebook_and_the_cell_and_sarif_the_line_of_the_file(tmp_path: Path) -> None:
    path = notebook(tmp_path, SETUP, "# Train", WRONG)
    check(tmp_path, "--output", "report.json", "train.ipynb")
    (finding,) = json.loads((tmp_path / "report.json").read_text("utf-8"))["findings"]
    assert (finding["file"], finding["cell"], finding["line"]) == (str(path), 2, LINE)
    check(tmp_path, "--output", "report.sarif", "train.ipynb")
    (result,) = json.loads((tmp_path / "report.sarif").read_text("utf-8"))["runs"][0]["results"]
    (location,) = result["locations"]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "train.ipynb"
    line = path.read_text("utf-8").splitlines()[location["physicalLocation"]["region"]["startLine"] - 1]
    assert line == '    "    if i % 4 == 0:\\n",'
    assert location["logicalLocations"][0]["fullyQualifiedName"] == f"train.ipynb cell 2, line {LINE}"
    assert result["message"]["text"].startswith(f"train.ipynb cell 2, line {LINE}: The first step uses")
    assert "fixes" not in result


def test_a_baseline_holds_when_cells_are_added_and_not_for_the_same_mistake_again(tmp_path: Path) -> None:
    notebook(tmp_path, SETUP, WRONG)
    assert check(tmp_path, "--write-baseline", "known.json", "train.ipynb").returncode == 0
    notebook(tmp_path, SETUP, "print('more')", WRONG)
    assert check(tmp_path, "--baseline", "known.json", "train.ipynb").returncode == 0
    notebook(tmp_path, SETUP, "print('more')", WRONG, WRONG)
    done = check(tmp_path, "--baseline", "known.json", "train.ipynb")
    assert "\ntrain.ipynb cell 4, line 3  error" in done.stdout
    assert "\ntrain.ipynb cell 3, line 3  error" not in done.stdout


def test_fix_edits_the_cells_and_leaves_the_rest_of_the_file_as_it_was(tmp_path: Path) -> None:
    path = notebook(tmp_path, SETUP, f"%%time\n{WRONG}", "print('größer')")
    before = path.read_text("utf-8")
    done = check(tmp_path, "--fix", "--yes", "train.ipynb")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "train.ipynb.orig").read_text("utf-8") == before
    after = nbformat.read(path, as_version=4)
    assert [cell.source for cell in after.cells] == [SETUP, f"%%time\n{FIXED}", "print('größer')"]
    changed = [line for line in path.read_text("utf-8").splitlines() if line not in before.splitlines()]
    assert len(changed) == 2


def test_diff_is_a_patch_of_the_notebooks_file(tmp_path: Path) -> None:
    path = notebook(tmp_path, SETUP, WRONG.rstrip())
    check(tmp_path, "--diff", "--output", "fixes.patch", "train.ipynb")
    subprocess.run(["git", "apply", "fixes.patch"], cwd=tmp_path, check=True)
    assert nbformat.read(path, as_version=4).cells[1].source == FIXED.rstrip()


def test_edits_that_do_not_fit_the_file_are_refused(tmp_path: Path) -> None:
    path = notebook(tmp_path, SETUP, WRONG)
    path.write_text(json.dumps(json.loads(path.read_text("utf-8"))), "utf-8")  # all on one line
    before = path.read_bytes()
    done = check(tmp_path, "--fix", "--yes", "train.ipynb")
    assert "The edits do not fit the file. Make the changes by hand." in done.stderr
    assert (done.returncode, path.read_bytes()) == (1, before)
    check(tmp_path, "--output", "report.sarif", "train.ipynb")  # no line of the file is the cell's
    (result,) = json.loads((tmp_path / "report.sarif").read_text("utf-8"))["runs"][0]["results"]
    assert list(result["locations"][0]["physicalLocation"]) == ["artifactLocation"]


def test_a_notebook_behaves_as_in_jupyter(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "data.txt").write_text("here", "utf-8")
    (tmp_path / "notes" / "helper.py").write_text("VALUE = 7", "utf-8")
    cells = [
        "print(open('data.txt').read())\nimport helper\nhelper.VALUE",
        "display(helper.VALUE + 1)\nprint(__name__, get_ipython() is not None)",
        "import asyncio\nawait asyncio.sleep(0)\nasync def two(): return 2\nawait two()",
        "5;",
        "!echo from a \\\n    shell\nfiles = !ls data.txt\nprint(files)\n%cd -q ..\n!ls -d notes",
    ]
    notebook(tmp_path / "notes", *cells)
    done = check(tmp_path, "--max-steps", "3", "notes/train.ipynb")
    assert done.stdout.partition("Nothing to check")[0].split("\n") == [
        *("here", "Out[1]: 7", "8", "__main__ True", "Out[3]: 2", "from a shell", "['data.txt']", "notes", "")
    ], done.stderr


def test_magic_commands_that_make_no_sense_here_are_left_out_by_name(tmp_path: Path) -> None:
    cells = [
        f"{SETUP}\n%debug\nmodel?\n%matplotlib widget\n%config InlineBackend.figure_format = 'retina'",
        f"%%time\n\n%tensorboard --logdir logs\n{WRONG}",
        "%%sql\nselect 1",
        "%time total = sum(range(4))\nprint(total)\n%tensorboard --logdir logs",
    ]
    notebook(tmp_path, *cells)
    done = check(tmp_path, "train.ipynb")
    assert f"train.ipynb cell 2, line {LINE + 3}  error  GG101" in done.stdout, done.stderr
    assert "\nWall time: " in f"\n{done.stdout}"
    assert "\n6\n" in done.stdout
    notes = " ".join(done.stdout.partition("\nnote")[2].replace("\nnote", "").split())
    assert notes == " ".join(
        textwrap.dedent("""\
        train.ipynb cell 1: %debug was skipped: it is interactive.
        train.ipynb cell 1: %pinfo was skipped: it is interactive.
        train.ipynb cell 1: %matplotlib widget was skipped: figures are not shown.
        train.ipynb cells 2, 4: %tensorboard was skipped: IPython doesn't have it outside a notebook server.
        train.ipynb cell 3: %%sql was skipped: IPython doesn't have it outside a notebook server.
        train.ipynb cell 4: %time was skipped: its line ran without the magic.""").split()
    )


def test_lines_below_a_magic_of_several_lines_keep_their_numbers(tmp_path: Path) -> None:
    notebook(tmp_path, SETUP, f"!echo a \\\n  b \\\n  c\n{WRONG}")
    done = check(tmp_path, "train.ipynb")
    assert f"train.ipynb cell 2, line {LINE + 3}  error" in done.stdout


@pytest.mark.parametrize(
    ("cell", "code", "message"),
    [
        ("x = 1\n1 / 0", 1, 'train.ipynb cell 2", line 2, in <module>\n    1 / 0\n'),
        ("x = (", 1, 'train.ipynb cell 2", line 1\n    x = (\n'),
        ("import sys\nsys.exit(3)", 3, ""),
    ],
)
def test_a_cell_that_fails_ends_the_run_and_its_lines_are_named(
    tmp_path: Path, cell: str, code: int, message: str
) -> None:
    notebook(tmp_path, f"{SETUP}\n{WRONG}", cell, "print('never')")
    done = check(tmp_path, "train.ipynb")
    assert done.returncode == code
    assert message in done.stderr
    assert "IPython" not in done.stderr
    assert "never" not in done.stdout
    assert (
        f"train.ipynb failed with exit code {code} after 3 steps. Found up to that point: 1 error."
        in done.stdout
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "gradgate check: 'train.ipynb' is not a notebook (NotJSONError: "),
        ("", "gradgate check: 'train.ipynb' is not a notebook (NotJSONError: "),
        (None, "gradgate check: 'train.ipynb' is a notebook in R. Only Python is checked.\n"),
    ],
)
def test_what_cannot_be_run_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = notebook(tmp_path, "1", language="R")
    if text is not None:
        path.write_text(text, "utf-8")
    done = check(tmp_path, "train.ipynb")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)


def test_the_packages_that_it_needs_are_named(tmp_path: Path) -> None:
    notebook(tmp_path, "1")
    hide = "import sys; sys.modules['IPython'] = None; from gradgate.cli import main"
    done = python("-c", f"{hide}; main(['check', 'train.ipynb'])", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "gradgate check: notebooks need IPython. Run pip install 'gradgate[notebook]'.\n"
