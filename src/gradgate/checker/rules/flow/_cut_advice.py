"""Advice and edits that keep a value attached to its graph, for each kind of cut."""

from __future__ import annotations

import ast
from functools import partial

from gradgate.checker.analysis._queries import whole_module
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called
from gradgate.checker.analysis._source import inside, statement_at
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix
from gradgate.checker.rules._rule import FixAt
from gradgate.checker.rules.flow._cut_terms import WITH_GRAPH
from gradgate.checker.rules.flow._graph_fixes import (
    new_tensor,
    not_reentrant,
    resampled,
    straight_through,
    unless_compared,
    untrained_modules,
    with_graph,
    without_cut,
    without_leaf,
)
from gradgate.checker.rules.flow._policy_weights import has_another_use, weights_of
from gradgate.events import Differentiated, Frame, Ids

LEAF, OFF, CHECKPOINT = "A new leaf", "Running without gradients", "A reentrant checkpoint"
NO_GRAPH = "autograd.grad without create_graph=True"
_WITHOUT = {
    LEAF: "not a new tensor. Join several values with torch.stack()",
    "Parameter": "not a new parameter",
    "data": "without .data",
}
_COPIES = {"deepcopy": "copy.deepcopy()", "load_state_dict": "load_state_dict()"}

_IN_THE_GRAPH = (
    "In the graph, the copy is not connected to {}. Compute the updated weights as tensors, p - lr * g, and pass "
    "them to torch.func.functional_call(network, weights, x)."
)
_OF_A_COPY = (
    "The gradients of a copy stay on the copy. Add them to the gradients of {} before {}.step(): p.grad = q.grad "
    "if p.grad is None else p.grad + q.grad, for each parameter p and its copy q."
)
_INDEX = (
    "An index has no gradient. Multiply the selected value by the probability of the choice, as a router does with "
    "an expert's output, or use the probabilities instead of the index."
)
_NOT_A_COPY = (
    "Keep the value in the graph, without item(), and without {}() at line {}, which makes a tensor without a "
    "graph. Join several values with torch.stack()."
)
_BESIDE_A_WEIGHT = (
    "To train {}, keep its output in the graph, without {}. Detach only {}, which weights a log-probability: the "
    "policy's loss must not train it."
)
_ONLY_A_WEIGHT = (
    "To train {}, add a loss of its own, such as F.mse_loss(values, returns). The weight at line {} should stay "
    "detached."
)
_FREEZE = "Freeze {0} instead, so that gradients pass through it: {0}.requires_grad_(False), without no_grad."


def copied_at(frame: Frame) -> str:
    """Return the call with which a line copies a module, or ""."""
    names = map(called, inside(ast.Call, statement_at(frame)))
    return next((_COPIES[name] for name in names if name in _COPIES), "")


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
    if how in _COPIES.values():
        if any(event.create for event in run.of(Differentiated)):
            return _IN_THE_GRAPH.format(network or "the original"), ()
        return _OF_A_COPY.format(network or "the original", name), ()
    if how == CHECKPOINT:
        return "None of the checkpoint's inputs requires a gradient. Pass use_reentrant=False.", not_reentrant
    if how in (".argmax()", ".argmin()"):
        return _INDEX, ()
    ops = (how.strip(".()"),)
    cut: FixAt = partial(
        unless_compared, ops=ops, modules=run.words(run.parameters), fix=partial(without_cut, ops=ops)
    )
    fix = {LEAF: without_leaf, NO_GRAPH: with_graph, ".sample()": resampled}.get(how, cut)
    statement = Statement.at(frame)
    chosen = straight_through(statement) if statement is not None else ""
    if chosen:
        return (
            f"In this straight-through estimator, the gradient bypasses `{chosen}`. To train `{chosen}`, add a "
            f"loss that uses `{chosen}` itself, not the result of this line.",
            (),
        )
    if how == NO_GRAPH:
        return WITH_GRAPH, fix
    copy = new_tensor(statement, ("item",)) if statement is not None and how == ".item()" else None
    if copy is not None:
        return _NOT_A_COPY.format(ast.unparse(copy.func), copy.lineno), fix
    if how == OFF and statement is not None:
        others = untrained_modules(statement, run.words(run.owned))
        if others:
            return _FREEZE.format(others[0]), ()
    if how == OFF or "detach" in how:
        off = "no_grad" if how == OFF else "detach"
        weights = weights_of(statement) if statement is not None else {}
        if weights and statement is not None:
            first = next(iter(weights))
            if not has_another_use(run, statement, weights):
                return _ONLY_A_WEIGHT.format(network or "it", first.lineno), ()
            weight = f"`{ast.unparse(first)}` at line {first.lineno}"
            return _BESIDE_A_WEIGHT.format(network or "it", off, weight), ()
        return (
            f"To train {network or 'this part'}, keep its output in the graph, without {off}. To keep it "
            f"unchanged (a teacher, a fixed target), leave it out of {name}."
        ), fix
    return f"Keep the value in the graph, {_WITHOUT.get(how, f'without {how.lstrip(chr(46))}')}.", fix
