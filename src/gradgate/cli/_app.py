"""The commands and their options. Parsing only selects an action, which runs later."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from typer.core import TyperCommand

import gradgate
from gradgate.cli._arguments import before_script
from gradgate.cli._config import Format

Action: TypeAlias = Callable[[], int]

_parsed: list[Action] = []
_line: list[str] = []

app = typer.Typer(
    name="gradgate",
    help="Find gradient mistakes in a training script.",
    epilog="Begin with: gradgate check train.py",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # with rich, click's \b would be printed literally
    context_settings={"help_option_names": ["-h", "--help"]},
)


def parse(arguments: list[str]) -> Action:
    """Return the action that a command line selects. Exit after --help and usage errors."""
    _parsed.clear()
    _line[:] = arguments
    try:
        # app() would replace sys.excepthook, which belongs to the script.
        typer.main.get_command(app)(args=arguments, prog_name="gradgate")
    except SystemExit as end:
        if not _parsed or end.code:
            raise
    return _parsed[0]


class ScriptCommand(TyperCommand):
    """A command whose own options come before the script and its arguments."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Show both forms: a script or a module."""
        return ["[OPTIONS] SCRIPT [ARGS]... | -m MODULE [ARGS]..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Separate the command's options from the script's arguments."""
        flags = {name for param in self.params if getattr(param, "is_flag", False) for name in param.opts}
        named = {name for param in self.params for name in param.opts if name.startswith("-")}
        args, note = before_script(args, flags, named - flags)
        if note:
            typer.echo(note, err=True)
        return super().parse_args(ctx, args)


def _same_check(program: list[str]) -> list[str]:
    """Return the command line without --fix and --yes."""
    own = _line[: len(_line) - len(program)]
    return [word for word in own if word not in ("--fix", "--yes")] + program


@app.callback(invoke_without_command=True)
def _gradgate(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        typer.echo(f"gradgate {gradgate.__version__}")
        raise typer.Exit


_Arguments = Annotated[list[str] | None, typer.Argument(metavar="SCRIPT [ARGS]", hidden=True)]
_Module = Annotated[str | None, typer.Option("-m", metavar="MODULE", help="Run a module, as python -m does.")]


@app.command(
    cls=ScriptCommand,
    short_help="Run a training script and report its gradient mistakes by line.",
    epilog="Exit code: 0 nothing found, 1 warnings or errors found, 2 wrong option. If the script fails, its own "
    "exit code.",
)
def check(
    arguments: _Arguments = None,
    module: _Module = None,
    format: Annotated[  # noqa: A002  (the option's name)
        Format | None,
        typer.Option(help="The format of the report.", show_default="the extension of --output, or text"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report to a .html, .json, .sarif or .txt file."),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="RULES", help="Report only these rules: GG103, GG1 or a category."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULES", help="Do not report these rules.")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Report only findings that are not in this file."),
    ] = None,
    write_baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the findings to this file, and report them as known."),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Stop the script after N optimizer steps.")
    ] = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(metavar="S", min=0.1, help="Stop the script at the next step after S seconds."),
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Ask, then apply the suggested edits and check again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --fix: don't ask.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Print all edits as one patch.")] = False,
) -> None:
    """Run a training script under watch and report mistakes with its gradients.

    gradgate's options come before the script. Options after it are the script's.

    \b
    gradgate check train.py --epochs 1                   in the terminal
    gradgate check --output report.html train.py         a page with figures
    gradgate check --max-steps 20 --select GG1 train.py  some rules, some steps
    gradgate check --fix train.py                        apply edits, check again
    gradgate check --write-baseline known.json train.py  accept today's findings
    gradgate check --baseline known.json train.py        report only new findings
    gradgate check torchrun --nproc-per-node 2 train.py  several ranks
    gradgate check train.ipynb                           the cells of a notebook
    """  # noqa: D301  (click reads the backspace: keep the lines below it)
    from gradgate.cli._check import check_program

    run = partial(check_program, module, arguments or [], select=select, ignore=ignore)
    run = partial(run, max_steps=max_steps, max_seconds=max_seconds)
    run = partial(run, fix=_same_check(arguments or []) if fix else None, yes=yes)
    run = partial(run, baseline=baseline, new_baseline=write_baseline)
    _parsed.append(partial(run, form="diff" if diff else format, output=output))


@app.command()
def rules() -> None:
    """List all rules."""
    from gradgate.cli._rules import list_rules

    _parsed.append(list_rules)


@app.command(short_help="Explain a rule: gradgate explain GG101.")
def explain(
    name: Annotated[str, typer.Argument(metavar="CODE", help="A code (GG103) or a category.")],
) -> None:
    """Explain a rule: the mistake it finds, the effect of the mistake, and the correct code."""
    from gradgate.cli._rules import explain_rule

    _parsed.append(partial(explain_rule, name))
