"""Finds evaluations that run a model in training mode, so that its batch norms follow the evaluation's data."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._gradient_modes import without_gradients
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    Function,
    Scope,
    called,
    functions,
    key_of,
    may_be_module,
    own_calls,
    own_nodes,
)
from gradgate.checker.analysis._slices import files_of
from gradgate.checker.analysis._source import FUNCTIONS, path_to, statement_at
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix, Insert
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, NormsMoved, Site, Stepped

_MEASURES = re.compile(r"loss|crit|accura|score|metric|error", re.IGNORECASE)
_ON_PURPOSE = ("momentum", "reset_running_stats", "update_bn")  # the statistics are computed anew


def evaluated_in_training(run: Run, rule: Rule) -> Iterator[Finding]:
    """Yield the blocks that measure a loss or a metric on several batches with batch norms in training mode."""
    last = max((number for number, _ in run.numbered(Stepped)), default=-1)
    blocks: dict[Scope, list[NormsMoved]] = defaultdict(list)
    in_a_row: Counter[Scope] = Counter()  # passes since the last backward call
    most: Counter[Scope] = Counter()
    for number, event in run.numbered(NormsMoved, Backward):
        if isinstance(event, Backward):
            in_a_row.clear()
        elif isinstance(event, NormsMoved) and number < last and (block := block_at(event.site)):
            blocks[block].append(event)
            in_a_row[block] += event.passes
            most |= in_a_row
    for block, events in blocks.items():
        if most[block] < 2 or not measures(block.node):
            continue
        ids = sorted(frozenset().union(*(event.parameters for event in events)))
        norms = list(dict.fromkeys(run.name(number).rpartition(".")[0] for number in ids))
        many = len(norms) > 1
        held_by = {run.parameters[number].root for number in ids} - {""}
        model = next(
            (min(each) for each in (_models_in(block.node, block.file), held_by) if len(each) == 1), "model"
        )
        yield rule.finding(
            Frame(block.file, without_gradients(block.node) or 0, ""),
            f"An evaluation runs {len(norms)} batch norm{'s' if many else ''} ({', '.join(norms[:2])}"
            f"{f' and {len(norms) - 2} more' if len(norms) > 2 else ''}) in training mode, and training continues: "
            f"{'their' if many else 'its'} running statistics changed in up to {most[block]} passes in a row.",
            why="no_grad stops gradients, but not the updates of running statistics. They follow data that no step "
            "trains on, and the result for a sample depends on its batch.",
            advice=f"Call {model}.eval() before the evaluation, and {model}.train() after it.",
            fix=_in_evaluation_mode,
            count=len(events),
            evidence={"layers": len(norms), "passes": most[block]},
        )


def block_at(site: Site) -> Scope | None:
    """Return the ``with`` statement, or the decorated function, that turns gradients off."""
    file, line, _ = site[0]
    calls = own_calls(statement_at(site[0]) or ast.Pass())
    around = (Scope(file, node) for node in reversed(path_to(file, line)))
    decorated = (scope for call in calls for scope in functions(called(call), files_of([site])))
    return next((each for each in (*around, *decorated) if without_gradients(each.node) is not None), None)


def measures(block: ast.AST) -> bool:
    """Return whether a block compares outputs with targets, and does not compute the statistics on purpose."""
    nodes = own_nodes(block)
    names = {str(getattr(node, "attr", getattr(node, "id", ""))) for node in nodes}
    compared = any(isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq) for node in nodes)
    calls = (called(node) for node in nodes if isinstance(node, ast.Call))
    return not names.intersection(_ON_PURPOSE) and (compared or any(map(_MEASURES.search, calls)))


def _models_in(block: ast.AST, file: str) -> set[str]:
    """Return the models that a block runs on batches."""
    loops = [node for node in own_nodes(block) if isinstance(node, (ast.For, ast.comprehension))]
    batch = {node.id for loop in loops for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    return {
        ast.unparse(call.func)
        for call in own_calls(block)
        if call.args and key_of(_moved(call.args[0])) in batch and may_be_module(call, file, (file,))
    }


def _in_evaluation_mode(at: Statement) -> Fix:
    """Put the one model that the block runs on batches into evaluation mode, and back at the end."""
    block = at.node
    if not isinstance(block, (ast.With, *FUNCTIONS)):
        return ()
    models = _models_in(block, at.file)
    if len(models) != 1:
        return ()
    (model,) = models
    on, off = f"{model}.train()", f"{model}.eval()"
    if isinstance(block, ast.With):
        returns = any(isinstance(node, ast.Return) for node in own_nodes(block))
        return () if returns else (Insert(off, before=at.line), Insert(on, after=at.line))
    end = at_the_end(block, on, model)
    return (Insert(off, before=block.body[0].lineno), *end) if end else ()


def at_the_end(function: Function, text: str, model: str) -> Fix:
    """Insert a statement at a function's end, if it returns only there and the result doesn't use the model."""
    last = function.body[-1]
    returns = [node for node in own_nodes(function) if isinstance(node, ast.Return)]
    if returns not in ([], [last]) or (returns and model in ast.unparse(last)):
        return ()
    return (Insert(text, before=last.lineno) if returns else Insert(text, after=last.lineno),)


def _moved(given: ast.expr) -> ast.expr:
    """Return the tensor of ``x.to(device)``, or the expression itself."""
    moved = isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute)
    return given.func.value if moved and called(given) in ("to", "cuda", "float") else given  # type: ignore[attr-defined,arg-type]
