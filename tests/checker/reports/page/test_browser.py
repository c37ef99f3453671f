"""The page in a real browser: Chromium, Chrome or Edge, if there is one. GRADGATE_BROWSER names another."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gradgate.checker.reports import Report
from tests.checker.reports.made import SUMMARY, finding
from tests.checker.reports.page.runs import EVERY, deep

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
BROWSER = os.environ.get("GRADGATE_BROWSER") or next(filter(None, map(shutil.which, _NAMES)), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium, Chrome or Edge is on PATH"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # playwright's own
]


# Labels outside of their figure or over another label, and text that is cut off. The boxes of text include space
# around the letters, so an overlap of up to three pixels in height is none.
MISPLACED = """() => [...document.querySelectorAll('.plot')].flatMap(plot => {
  const frame = plot.getBoundingClientRect();
  const boxes = [...plot.querySelectorAll('text')].map(text => [text.textContent, text.getBoundingClientRect()])
    .filter(([text, box]) => text.trim() && box.width);
  const outside = ([, box]) => box.left < frame.left - 1 || box.right > frame.right + 1
    || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
  const covers = ([, a], [, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
  return boxes.filter((one, number) => outside(one) || boxes.slice(number + 1).some(other => covers(one, other)))
    .map(([text]) => `${plot.className}: ${text}`);
}).concat([...document.querySelectorAll('p, pre, dd, h1, h2, h3')]
  .filter(part => part.scrollWidth > part.clientWidth + 1).map(part => part.textContent))"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def opened(browser: Any, path: Path, width: int, scheme: str) -> tuple[Any, list[str]]:
    """Open a file in a page of its own; return it, and what the browser complained of."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page, said = context.new_page(), []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-drawn]", state="attached", timeout=30_000)
    return page, [one for one in said if not one.startswith(("blob:", "data:"))]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_every_figure_is_drawn_and_nothing_is_complained_of(
    make: Callable[[], Report], width: int, scheme: str, chromium: Any, tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    make().save(path)
    page, said = opened(chromium, path, width, scheme)
    assert said == []
    assert page.title().endswith(": gradgate")  # no script of a name's has run
    plots = page.query_selector_all(".plot")
    assert len(plots) == int(page.evaluate("document.documentElement.dataset.drawn")) >= 5
    marks = page.evaluate(
        "[...document.querySelectorAll('.plot')].map(p => p.querySelectorAll("
        "'.sankey-link, .heatmaplayer image, .barlayer path, .scatterlayer path').length)"
    )
    assert all(number > 0 for number in marks)
    # Nothing hangs out of the window or of its figure, no label covers another, and no letter is too small to read.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(MISPLACED) == []
    sizes = page.evaluate(
        "[...document.querySelectorAll('p, dd, td, h1, h2, h3, a, .plot text')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 9
    # The other ground: text changes with it.
    before = page.evaluate("getComputedStyle(document.querySelector('.plot text')).fill")
    page.emulate_media(color_scheme={"light": "dark", "dark": "light"}[scheme])
    page.wait_for_function(
        "before => getComputedStyle(document.querySelector('.plot text')).fill !== before", arg=before
    )
    page.context.close()


def test_a_fix_can_be_copied(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    deep().save(path)
    page, said = opened(chromium, path, 1280, "light")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click(".copy")
    page.locator(".copy", has_text="Copied").first.wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.get_attribute(".copy", "data-copy")
    assert said == []
    page.context.close()


def test_a_long_path_is_wrapped(chromium: Any, tmp_path: Path) -> None:
    path, script = tmp_path / "report.html", f"{'a_folder_with_a_long_name/' * 4}{'train' * 20}.py"
    Report(script, (finding(script),), SUMMARY).save(path)
    page, said = opened(chromium, path, 390, "light")
    assert said == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.context.close()


def test_a_label_that_is_misplaced_is_noticed(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    EVERY["sampled"]().save(path)
    text = path.read_text("utf-8").replace(
        "const short = (word, most) =>", "const short = (word, most) => true ? word :"
    )
    path.write_text(text, "utf-8")
    page, _ = opened(chromium, path, 390, "light")
    assert any(label.startswith("plot reach") for label in page.evaluate(MISPLACED))
    page.context.close()


def test_a_page_that_breaks_is_noticed(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    EVERY["adversaries"]().save(path)
    broken = path.read_text("utf-8").replace("<body>", '<body><script>console.error("broken")</script>')
    path.write_text(broken, "utf-8")
    page, said = opened(chromium, path, 800, "light")
    assert said == ["error: broken"]
    page.context.close()
