"""The page says what the report says, loads nothing, and takes no word of a script for markup."""

import html
import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import gradgate as gg
from gradgate.checker.fixes import Move
from gradgate.checker.reports import Report, report_on

# private: every line that a fix moves is shown, whatever the lexer makes of it; a figure is made to fail
from gradgate.checker.reports._content import Entry, SourceLine
from gradgate.checker.reports.page._page import highlighted
from gradgate.checker.reports.page._run_view import RunView
from gradgate.checker.rules import Finding, rules
from tests.checker.reports.page.runs import EVERY, Hostile, accumulated, adversaries, hostile

MOST_BYTES = 2_100_000


class Reader(HTMLParser):
    """Gathers a page's tags, what it points at, and the text that is shown."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.points_at: list[str] = []
        self.handlers: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.points_at += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts.append(data)
        elif self.lasttag != "style":
            self.text += data


def page_of(report: Report, tmp_path: Path) -> str:
    report.save(tmp_path / "report.html")
    return (tmp_path / "report.html").read_text("utf-8")


def figures_in(page: str) -> list[object]:
    found = re.search(r'<script id="figures" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    figures: list[object] = json.loads(found[1])
    assert len(figures) == page.count('<div class="plot ')
    return figures


def drawn_in(page: str) -> list[str]:
    """Return the section of each figure."""
    return re.findall(r'<div class="plot (\w+)">', page)


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_the_page_is_one_file_that_loads_nothing(make: Callable[[], Report], tmp_path: Path) -> None:
    page = page_of(make(), tmp_path)
    seen = Reader(page)
    assert len(page.encode()) < MOST_BYTES
    assert seen.points_at
    assert all(target.startswith("#") for target in seen.points_at)
    assert not {"link", "img", "iframe", "object", "base"} & set(seen.tags)
    assert "default-src 'none'" in page


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_it_says_what_the_report_says(make: Callable[[], Report], tmp_path: Path) -> None:
    report = make()
    text = " ".join(Reader(page_of(report, tmp_path)).text.split())
    for finding in report.findings:
        for said in (finding.message, finding.why, finding.advice, finding.code):
            assert " ".join(said.split()) in text


def test_it_has_every_figure_that_there_is_something_to_draw_for(tmp_path: Path) -> None:
    sections = ["overview", "flow", "reach", "window", "norms", "ratios"]
    for make, losses in ((accumulated, 1), (adversaries, 2)):
        page = page_of(make(), tmp_path)
        assert list(dict.fromkeys(drawn_in(page))) == sections
        assert drawn_in(page).count("overview") == 3
        assert drawn_in(page).count("reach") == losses


def test_names_and_source_of_a_script_stay_text(tmp_path: Path) -> None:
    page = page_of(hostile(), tmp_path)
    seen = Reader(page)
    assert Hostile.NAME in hostile().findings[0].message
    assert not seen.handlers
    assert seen.tags.count("script") == page.count("<script") == page.count("</script>") == 4
    assert Hostile.NAME in seen.text  # as text
    words = json.dumps(figures_in(page), ensure_ascii=False)
    assert "&lt;img src=x onerror=" in words  # what plotly shows as it stands
    # All the markup that plotly is given is the page's own.
    assert set(re.findall(r"</?(\w+)", words)) <= {"br", "extra"}


def test_a_finding_with_a_fix_is_shown_with_it(tmp_path: Path) -> None:
    page = page_of(accumulated(), tmp_path)
    assert "<h3>Fixed <button" in page
    new = [Reader(row).text for row in re.findall(r'<tr class="new">.*?</tr>', page)]
    assert [text.strip("+ ") for text in new] == [
        "(loss / min(4, len(data) - i // 4 * 4)).backward()",
        "if (i + 1) % 4 == 0 or i + 1 == len(data):",
    ]


def test_all_that_comes_behind_one_line_is_shown(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    lines = ["for x in data:", "    loss(x).backward()", "    a.zero_grad()", "    b.zero_grad()"]
    script.write_text("\n".join([*lines, "    a.step()", "    b.step()", "    log()"]) + "\n", "utf-8")
    fix = Move(3, after=7), Move(4, after=7)
    finding = Finding("GG202", "zero-grad-misplaced", "error", str(script), 3, "what", "why", "do", fix=fix)
    marks = [(line.mark, line.text) for line in Entry(finding).changes(1)]
    assert [text for mark, text in marks if mark == "-"] == ["a.zero_grad()", "b.zero_grad()"]
    assert [text for mark, text in marks if mark == "+"] == ["a.zero_grad()", "b.zero_grad()"]


def test_what_the_lexer_takes_for_an_error_is_shown_as_any_text(tmp_path: Path) -> None:
    """An excerpt may begin within a string, and what is left out is a line of its own."""
    assert 'class="err"' in highlighted([SourceLine(0, "", "…")])[0][1]
    assert ".err {" not in page_of(accumulated(), tmp_path)


def test_the_explanation_of_a_rule_is_open_where_there_is_no_fix(tmp_path: Path) -> None:
    entries = [*adversaries().entries(), *accumulated().entries()]
    assert {bool(entry.edits) for entry in entries} == {True, False}
    page = page_of(adversaries(), tmp_path) + page_of(accumulated(), tmp_path)
    marks = re.findall(r'<details class="rule"( open)?>', page)
    assert [mark == "" for mark in marks] == [bool(entry.edits) for entry in entries]


def test_findings_come_before_the_summary_and_the_figures(tmp_path: Path) -> None:
    page = page_of(accumulated(), tmp_path)
    assert (
        page.rindex("<article")
        < page.index("<dt>watched")
        < page.index('<section class="figure" id="overview"')
    )


def test_an_explanation_has_no_example_of_another_mistake(tmp_path: Path) -> None:
    """One rule finds several mistakes: its example of one optimizer would not fit a GAN."""
    page = page_of(accumulated(), tmp_path)
    headings = re.findall(r"<h4>(.*?)</h4>", page)
    assert set(headings) == {"What it does", "Why is this bad?", "Known limits", "Sources"}
    (rule,) = (rule for rule in rules() if rule.code == accumulated().findings[0].code)
    example = rule.doc.partition("## Example")[2].partition("##")[0].strip().splitlines()[-1].strip()
    assert example in rule.doc
    assert example not in html.unescape(page).partition("<details")[2].partition("</details>")[0]


def test_a_curve_is_named_beside_its_figure(tmp_path: Path) -> None:
    page = page_of(adversaries(), tmp_path).partition('<section class="figure" id="overview">')[2]
    names = re.findall(r'<span><i style="background:#\w+"></i>(.*?)</span>', page)
    starts = ["c_loss.backward()", "g_loss.backward()", "opt_c (Adam)", "opt_g (Adam)"]
    assert [name.partition("  ")[0] for name in names[:4]] == starts


def test_a_run_without_training_is_a_page_without_figures(tmp_path: Path) -> None:
    page = page_of(report_on([]), tmp_path)
    assert "Nothing to check" in page
    assert 'id="plotly"' not in page
    assert len(page) < 60_000


def test_a_figure_that_fails_costs_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunView, "groups", property(lambda self: 1 / 0))
    page = page_of(accumulated(), tmp_path)
    assert "could not be drawn because of a bug in gradgate: ZeroDivisionError" in page
    assert accumulated().findings[0].code in page
    assert drawn_in(page) == ["overview"] * 3 + ["window"]
    assert len(figures_in(page)) == 4


def test_the_page_says_how_and_where_the_run_took_place(tmp_path: Path) -> None:
    report = accumulated()
    circumstances = report.logs[0].circumstances
    assert list(circumstances) == ["date", "device", "versions"]  # a loop in this process has no command
    text = " ".join(Reader(page_of(report, tmp_path)).text.split())
    assert circumstances["versions"].startswith(f"torch {torch.__version__}, Python ")
    assert f"versionsgradgate {gg.__version__}, {circumstances['versions']}" in text
    assert f"date{circumstances['date']}" in text


def test_a_finding_holds_its_rules_explanation_and_the_lines_to_copy(tmp_path: Path) -> None:
    page = page_of(accumulated(), tmp_path)
    (finding, *_) = accumulated().findings
    assert f"gradgate explain {finding.code}" in Reader(page).text
    assert "<h4>Why is this bad?</h4>" in page
    (copied,) = re.findall(r'data-copy="([^"]*)"', page)
    lines = [line.strip() for line in html.unescape(copied).splitlines()]
    assert lines == [
        "(loss / min(4, len(data) - i // 4 * 4)).backward()",
        "if (i + 1) % 4 == 0 or i + 1 == len(data):",
    ]
