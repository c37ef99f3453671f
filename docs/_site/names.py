"""References in docstrings: by the short names that docstrings use, wherever the name's page is."""

from typing import Any

from docutils import nodes
from sphinx.util.nodes import make_refnode


def add_reference(app: Any, env: Any, node: Any, shown: nodes.TextElement) -> nodes.Node | None:
    """Lead to the one documented name that ends in what is referred to.

    A type in a signature that has no page stays a word. A role in a docstring that leads nowhere is
    reported: for it None is returned.
    """
    if node.get("refdomain") != "py":
        return None
    last = node["reftarget"].rpartition(".")[2]
    objects = env.get_domain("py").objects
    found = {one for one in objects if one.rpartition(".")[2] == last}
    if node["reftarget"].startswith("gradgate.") or "." not in node["reftarget"]:
        for name in found if len(found) == 1 else ():
            entry = objects[name]
            return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, shown, name)
    return shown if isinstance(shown, nodes.Text) or "._" in node["reftarget"] else None


def keep_colons(app: Any, what: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from reading "All of them: the sum" as an attribute of the type "All of them"."""
    if what in ("attribute", "property", "data"):
        lines[:0] = ["..", ""]  # an empty comment: the first line is no longer the sentence


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx."""
    app.connect("missing-reference", add_reference)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # napoleon comes at 500
    return {"parallel_read_safe": True}
