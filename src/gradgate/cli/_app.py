"""The commands and their options. Each says what is to be done; nothing is done while they are read."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

import gradgate

Work: TypeAlias = Callable[[], int]

_chosen: list[Work] = []

app = typer.Typer(
    name="gradgate",
    help="Find out which line of a training script is wrong, why, and what to write instead.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def read(arguments: list[str]) -> Work:
    """Return what the command line asks for. Help and mistakes in it end the process, as is usual."""
    _chosen.clear()
    try:
        # Not app(): that would replace sys.excepthook, which is the script's.
        typer.main.get_command(app)(args=arguments, prog_name="gradgate")
    except SystemExit as end:
        if not _chosen or end.code:
            raise
    return _chosen[0]


class Format(str, Enum):
    """What a report is written as."""

    text = "text"
    json = "json"
    sarif = "sarif"
    html = "html"


class ListFormat(str, Enum):
    """What the list of rules is written as."""

    text = "text"
    json = "json"


class ScriptCommand(TyperCommand):
    """A command whose own options end where the script begins, as those of python do."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Name the two ways to say what to run."""
        return ["[OPTIONS] SCRIPT [ARGS]... | -m MODULE [ARGS]..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Mark the place from which everything belongs to the script."""
        return super().parse_args(ctx, _divided(args, self.params))


def _divided(args: list[str], params: list[Any]) -> list[str]:
    """Put "--" before the script, or behind the module: from there on options are the script's."""
    flags = {name for param in params if getattr(param, "is_flag", False) for name in param.opts}
    flags |= {"-h", "--help"}
    at = 0
    while at < len(args):
        word = args[at]
        if word == "--":
            return args
        if word == "-m" and at + 1 < len(args):
            return [*args[: at + 2], "--", *args[at + 2 :]]
        if word.startswith("-m") and not word.startswith("--"):
            return [*args[:at], "-m", word[2:], "--", *args[at + 1 :]]
        if not word.startswith("-") or word == "-":
            return [*args[:at], "--", *args[at:]]
        at += 1 if word in flags or "=" in word else 2
    return args


@app.callback(invoke_without_command=True)
def _gradgate(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"gradgate {gradgate.__version__}")
        raise typer.Exit


@app.command(
    cls=ScriptCommand,
    epilog="Exit code: 0 nothing found, 1 warnings or errors, 2 it could not do its work or the script failed, "
    "130 interrupted.",
)
def check(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SCRIPT [ARGS]", help="What to run, and what it is given.", show_default=False
        ),
    ] = None,
    module: Annotated[
        str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as python -m does.")
    ] = None,
    format: Annotated[  # noqa: A002  (the name is that of the option)
        Format | None,
        typer.Option(
            help="What to write the report as.", show_default="text, or what the ending of --output says"
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the report to a file: report.html, .json, .sarif or .txt.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RULES", help="Report only these: codes (GG103), beginnings (GG1) or categories."
        ),
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="RULES", help="Do not report these.")] = None,
    max_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Stop the script after N optimizer steps.")
    ] = None,
    no_progress: Annotated[bool, typer.Option("--no-progress", help="Show no progress line.")] = False,
) -> None:
    r"""Run a training script under watch, and report what is wrong with its gradients.

    Options come before the script; everything after it is handed to the script as it is.

    \b
    gradgate check train.py --epochs 1                   in the terminal
    gradgate check --output report.html train.py         a page with figures
    gradgate check --max-steps 20 --select GG1 train.py  some rules, some steps
    gradgate check torchrun --nproc-per-node 2 train.py  several ranks
    """
    from gradgate.cli._check import Options, check_program

    options = Options(
        select=None if select is None else tuple(select),
        ignore=None if ignore is None else tuple(ignore),
        format=None if format is None else format.value,
        max_steps=max_steps,
        output=output,
        progress=not no_progress,
    )
    _chosen.append(lambda: check_program(module, arguments or [], options))


@app.command()
def rules(
    format: Annotated[ListFormat, typer.Option(help="What to write the list as.")] = ListFormat.text,  # noqa: A002
    write: Annotated[Path | None, typer.Option(metavar="FOLDER", hidden=True)] = None,
) -> None:
    """List what can be found."""
    from gradgate.cli._explain import list_rules, write_pages

    if write is not None:
        _chosen.append(lambda: write_pages(write))
    else:
        _chosen.append(lambda: list_rules(as_json=format is ListFormat.json))


@app.command()
def env() -> None:
    """Print versions and machine, for a bug report."""
    from gradgate.cli._environment import print_environment

    _chosen.append(print_environment)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(metavar="CODE", help="A code (GG103) or a category.")],
) -> None:
    """Say what a rule finds, why that is bad, and what to write instead."""
    from gradgate.cli._explain import explain_rule

    _chosen.append(lambda: explain_rule(name))


@app.command(name="new-rule")
def new_rule(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The rule's name: clip-misplaced.")],
    code: Annotated[str, typer.Option(metavar="CODE", help="A code that is free: GG306.")],
    folder: Annotated[Path, typer.Option(metavar="FOLDER", hidden=True)] = Path(),
) -> None:
    """Begin a new rule, in a checkout of gradgate: the rule and two scripts to test it with."""
    from gradgate.cli._new_rule import new_rule as write_files

    _chosen.append(lambda: write_files(name, code.upper(), folder))
