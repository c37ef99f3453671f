"""Writes what was measured on a GPU: a result under benchmarks/, and a section of docs/performance.md."""

import re
from datetime import datetime, timezone
from pathlib import Path

BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"


def written(section: str, hardware: str, root: Path) -> Path:
    """Write a section to a result of its own, and between the markers of docs/performance.md, which links to it.

    Args:
        section: Markdown, with headings of the third level and below.
        hardware: names the result, together with the month.
        root: of the repository.

    Returns:
        the path of the result.

    Raises:
        ValueError: the page does not have both markers, once each and in order.
    """
    page = root / "docs" / "performance.md"
    text = page.read_text("utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{page.name} needs the markers {BEGIN} and {END}, once each and in this order")
    name = re.sub(r"[^a-z0-9]+", "-", hardware.lower()).strip("-")
    result = root / "benchmarks" / f"gpu_{name}_{datetime.now(timezone.utc):%Y-%m}.md"
    before, rest = text.split(BEGIN)
    link = f"[Result](../benchmarks/{result.name})"
    page.write_text(f"{before}{BEGIN}\n{link}: {section.strip()}\n{END}{rest.split(END)[1]}", "utf-8")
    result.write_text(f"# What holds on a GPU\n\n{section.strip()}\n", "utf-8")
    return result
