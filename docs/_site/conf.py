"""How Sphinx makes the site: from the repository's own files, where they lie, and from nothing else.

The source folder is the repository, not docs/, so that every link between pages, scripts and results is the
relative link that it is on a code host. Which page comes where is told by the home page: see contents.py.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "src")]

import gradgate  # noqa: E402


def repository() -> str:
    """Return the address that the checkout was cloned from, as a browser opens it, or "" if it has none."""
    ask = ["git", "-C", str(HERE), "config", "--get", "remote.origin.url"]
    cloned = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip()
    address = os.environ.get("REPOSITORY") or re.sub(r"^(ssh://)?git@([^:/]+)[:/]", r"https://\2/", cloned)
    return address.removesuffix(".git") if address.startswith("https://") else ""


project = "gradgate"
version = gradgate.__version__
copyright = "the authors of gradgate"  # noqa: A001  (the name is Sphinx's)
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "contents",
    "names",
    "scripts",
    "command_line",
]

root_doc = "docs/index"
include_patterns = [
    "README.md",
    "README.zh-CN.md",
    "CONTRIBUTING.md",
    "CODE_OF_CONDUCT.md",
    "AGENTS.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "changelog.d/README.md",
    "docs/**.md",
    "examples/*",
    "examples/checked/*",
    "benchmarks/*",
    "corpus/README.md",
    "benchmarks/results/*",
]
exclude_patterns = [".*", "build", "dist", "out", "src", "tests", "**/__pycache__", "**/_*", "conftest.py"]
source_suffix = {".md": "markdown", ".py": "script"}

myst_heading_anchors = 4
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(torch|json)\b.*")]  # what others document
suppress_warnings = ["myst.header"]  # results of benchmarks are parts of pages elsewhere

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_custom_sections = [("Sources", "notes_style")]
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "furo"
pygments_dark_style = "github-dark"  # the theme's own underlines imports, as if they were links
html_title = "gradgate"
html_extra_path = ["extra"]
html_static_path = ["static"]
templates_path = ["templates"]
html_context = {"repository": repository()}
parts = ("brand", "search", "scroll-start", "navigation", "scroll-end")
html_sidebars = {"**": [f"sidebar/{part}.html" for part in parts]}
html_sidebars["**"].insert(1, "version.html")
html_css_files = ["site.css"]
html_show_sourcelink = False
html_use_index = False
html_domain_indices = False
html_copy_source = False
GREEN, LIGHT_GREEN = "#0b6e4f", "#5fd3a5"
html_theme_options = {
    "light_css_variables": {
        **dict.fromkeys(("color-brand-primary", "color-brand-content", "color-api-name"), GREEN),
        "color-api-pre-name": "#5a6b64",
        "code-font-size": "80%",
    },
    "dark_css_variables": {
        **dict.fromkeys(("color-brand-primary", "color-brand-content", "color-api-name"), LIGHT_GREEN),
        "color-api-pre-name": "#9fb3aa",
    },
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def setup(app: Any) -> None:
    """Let a page list the pages of its own section only: all 160 on each page take a third of the build."""

    def collapse(app: Any, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
        if (toctree := context.get("toctree")) is not None:
            context["toctree"] = lambda **options: toctree(**{**options, "collapse": True})

    app.connect("html-page-context", collapse, priority=1)  # before the theme, which asks for all pages
