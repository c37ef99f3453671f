"""Advice and edits that keep a value attached to its graph, for each kind of cut."""

from __future__ import annotations

import ast
from functools import partial

from gradgate.checker.analysis._constant_summands import is_count
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, calls_at
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix
from gradgate.checker.rules._rule import FixAt
from gradgate.checker.rules.flow._cut_terms import WITH_GRAPH
from gradgate.checker.rules.flow._freezing import whole_module
from gradgate.checker.rules.flow._graph_fixes import (
    frozen_with_graph,
    not_reentrant,
    resampled,
    straight_through,
    unless_target,
    untrained_modules,
    with_graph,
    without_cut,
    without_leaf,
)
from gradgate.events import Differentiated, Frame, Ids

LEAF, OFF, CHECKPOINT = "A new leaf", "Running without gradients", "A reentrant checkpoint"
NO_GRAPH = "autograd.grad without create_graph=True"
_WITHOUT = {LEAF: "not a new tensor", "Parameter": "not a new parameter", "data": "without .data"}
_COPIES = {"deepcopy": "copy.deepcopy()", "load_state_dict": "load_state_dict()"}


def copied_at(frame: Frame) -> str:
    """Return the call with which a line copies a module, or ""."""
    return next((_COPIES[called(call)] for call in calls_at(frame) if called(call) in _COPIES), "")


def in_its_graph(run: Run, frame: Frame, ids: Ids, how: str, optimizer: int) -> tuple[str, Fix | FixAt]:
    """Return the advice for a cut, and the edit.

    Args:
        run: run of the script.
        frame: the line that cuts.
        ids: the parameters that get no gradient.
        how: the operation, as named in the message.
        optimizer: the optimizer that holds the parameters.
    """
    network, name = whole_module(run, ids), run.optimizer(optimizer)
    if how in _COPIES.values() and any(event.create for event in run.of(Differentiated)):
        return (
            f"In the graph, the copy is not connected to {network or 'the original'}. Compute the updated weights "
            "as tensors, p - lr * g, and pass them to torch.func.functional_call(network, weights, x).",
            (),
        )
    if how in _COPIES.values():
        return (
            "The gradients of a copy stay on the copy. Add them to the gradients of "
            f"{network or 'the original'} before {name}.step(): p.grad = q.grad if p.grad is None else p.grad "
            "+ q.grad, for each parameter p and its copy q.",
            (),
        )
    if how == CHECKPOINT:
        return "None of its inputs needs a gradient. Pass use_reentrant=False.", not_reentrant
    if how in (".argmax()", ".argmin()"):
        return (
            "An index has no gradient. Multiply the selected value by the probability of the choice, as a router "
            "does with an expert's output, or use the probabilities instead of the index.",
            (),
        )
    cut: FixAt = partial(without_cut, ops=(how.strip(".()"),))
    fix = {LEAF: without_leaf, NO_GRAPH: with_graph, ".sample()": resampled}.get(how, cut)
    statement = Statement.at(frame)
    chosen = straight_through(statement) if statement is not None else ""
    if chosen:
        return (
            f"In this straight-through estimator, the gradient bypasses `{chosen}`. To train `{chosen}`, add a "
            f"loss that uses `{chosen}` itself, not the result of this line.",
            (),
        )
    advice = f"Use the value with its graph, {_WITHOUT.get(how, f'without {how.lstrip(chr(46))}')}."
    counts = [node for node in statement.expressions() if is_count(node)] if statement is not None else []
    if how == LEAF and counts:
        advice = f"`{ast.unparse(counts[0])}` has no gradient: use the values instead, such as probabilities."
    if how == NO_GRAPH:
        advice = WITH_GRAPH
    if how == OFF or "detach" in how:
        advice = (
            f"To train {network or 'this part'}, use its output with its graph, without "
            f"{'no_grad' if how == OFF else 'detach'}. To keep it unchanged (a teacher, a fixed target), "
            f"leave it out of {name}."
        )
        if network:
            fix = partial(unless_target, fix=fix)
        trained = run.words(run.owned)
        if how == OFF and statement is not None and (others := untrained_modules(statement, trained)):
            fix = partial(frozen_with_graph, modules=others, fix=fix)
            advice = (
                f"Freeze {others[0]} instead, which lets gradients pass: {others[0]}.requires_grad_(False), "
                "without no_grad."
            )
    return advice, fix
