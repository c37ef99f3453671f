"""The directive ``command-line``: usage and options of every command, asked of the command line itself."""

import re
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

PLAIN = re.compile(r" <(list\[)?str\]?>")  # of an argument, not worth saying


def described(name: str, command: Any, context: Any) -> list[str]:
    """Return one command's usage, what it does, and its options, as Markdown."""
    usage = " ".join(command.collect_usage_pieces(context))
    lines = ["```console", f"$ gradgate {name} {usage}", "```", "", *command.help.splitlines(), ""]
    lines += ["| option | what it does |", "|---|---|"]
    for param in command.get_params(context):
        record = param.get_help_record(context)
        if record is not None and not getattr(param, "hidden", False):
            option, says = (text.replace("|", r"\|") for text in record)
            lines.append(f"| `{PLAIN.sub('', option)}` | {says} |")
    return [*lines, "", command.epilog or "", ""]


class CommandLine(SphinxDirective):
    """Shows every command."""

    def run(self) -> list[nodes.Node]:
        """Make a section of each command."""
        import typer

        from gradgate.cli._app import app

        group = typer.main.get_command(app)
        context = group.make_context("gradgate", ["rules"], resilient_parsing=True)
        made: list[nodes.Node] = []
        for name, command in group.commands.items():
            section = nodes.section(ids=[nodes.make_id(name)])
            section += nodes.title(text=f"gradgate {name}")
            inner = type(context)(command, parent=context, info_name=name)
            text = StringList(described(name, command, inner), "the command line")
            self.state.nested_parse(text, 0, section)
            made.append(section)
        return made


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True}
