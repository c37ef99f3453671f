"""What Sphinx has to know of our docstrings: short names, sentences with colons, and fields with comments."""

import ast
import inspect
import re
import textwrap
from dataclasses import is_dataclass
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
    found = {name for name in objects if name.rpartition(".")[2] == last}
    if node["reftarget"].startswith("gradgate.") or "." not in node["reftarget"]:
        for name in found if len(found) == 1 else ():
            entry = objects[name]
            return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, shown, name)
    return shown if isinstance(shown, nodes.Text) or "._" in node["reftarget"] else None


def lead_to_names(app: Any, doctree: nodes.document, docname: str) -> None:
    """In the table of the reference, let a link to a name's page lead to the name itself.

    The source links to the page alone, since a code host does not know the places that autodoc makes.
    """
    if docname != "docs/reference/index":
        return
    objects = app.env.get_domain("py").objects
    for link in doctree.findall(nodes.reference):
        name = link.astext()
        entry = objects.get(name) or objects.get(f"gradgate.{name}")
        if entry is not None:
            link["refuri"] = f"{app.builder.get_relative_uri(docname, entry.docname)}#{entry.node_id}"


def keep_colons(app: Any, what: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """Keep napoleon from reading "All of them: the sum" as an attribute of the type "All of them"."""
    if what in ("attribute", "property", "data"):
        lines[:0] = ["..", ""]  # an empty comment: the first line is no longer the sentence


def fields(cls: type) -> dict[str, str]:
    """Return what the comment behind each public field of a dataclass says of it."""
    source = textwrap.dedent(inspect.getsource(cls))
    [made] = ast.parse(source).body
    found = {}
    for node in made.body if isinstance(made, ast.ClassDef) else ():
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            text = "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])
            found[node.target.id] = " ".join(re.findall(r"#\s*(.*)", text))
    return found


def add_fields(app: Any, what: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """List the fields of a dataclass whose docstring does not."""
    text = "\n".join(lines)
    if what == "class" and is_dataclass(it) and ":ivar" not in text and ":param" not in text:
        lines += ["", *(f":ivar {field}: {says}".rstrip() for field, says in fields(it).items()), ""]


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx."""
    app.connect("missing-reference", add_reference)
    app.connect("doctree-resolved", lead_to_names)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # napoleon comes at 500
    app.connect("autodoc-process-docstring", add_fields, priority=600)
    return {"parallel_read_safe": True}
