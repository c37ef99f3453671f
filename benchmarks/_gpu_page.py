"""Writes what was measured on a GPU: benchmarks/results/gpu.md, and a section of docs/performance.md."""

from pathlib import Path

BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"


def written(section: str, root: Path) -> Path:
    """Write a section to a result of its own, and between the markers of docs/performance.md, which links to it.

    Args:
        section: Markdown, with headings of the third level and below.
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
    result = root / "benchmarks" / "results" / "gpu.md"
    before, rest = text.split(BEGIN)
    link = "[Result](../benchmarks/results/gpu.md)"
    page.write_text(f"{before}{BEGIN}\n{link}: {section.strip()}\n{END}{rest.split(END)[1]}", "utf-8")
    linked = section.strip().replace("(../benchmarks/", "(../")  # links from the folder of the results
    result.write_text(f"# What holds on a GPU\n\n`python benchmarks/gpu.py --write`, {linked}\n", "utf-8")
    return result
