"""A term of the loss is computed and shown, but never back-propagated.

## What it does
Looks for a value that has a graph but is only displayed, in a function that back-propagates a loss without this
value. The value counts as a loss term if its name says so (``kl_loss``, ``l1_penalty``), if it is a product with
its weight (``kl = beta * divergence(mu, var)``), or if the script sets a nonzero weight for it and reads the weight
nowhere, or only in f-strings: ``entropy`` and ``ent_coef = 0.01``. Also looks for a sum of losses that is only
displayed, or logged by Lightning, although some of its summands are back-propagated, and for a term that the next
line overwrites (``loss = recon + kl``, then ``loss = recon``). Also looks for loops that overwrite their loss
(``loss = ...`` in place of ``loss += ...``), so only the last one is back-propagated, and for weights that are 0 in
the whole run because a division rounds down: ``min(1, epoch // anneal_epochs)``.

## Why is this bad?
The term is printed at each step, but nothing minimizes it.

## Example
    loss = rec_loss                                   # kl_loss is missing
    loss.backward()
    print(rec_loss.item(), kl_loss.item())

## Use instead
    loss = rec_loss + beta * kl_loss

If a term is only for display, compute it under ``torch.no_grad()``.

## Known limits
Terms in lists are missed, and so is a term in a dict whose weight is missing. Terms with other names and without a
weight are missed too, because an entropy or an error that is printed to monitor training looks the same. A loop
that overwrites its losses and displays them is found only if they start from 0, or if it divides them. A term that
is added to the loss after ``backward()`` is not found, nor is a term that another function prints. A displayed sum
is missed if a part of its other summand is detached and this summand isn't displayed itself. A weight that rounds
down is found only if a loop counts what is divided, and if the term is a single number where it is weighed.

## Sources
docs/checking.md.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradgate.checker.analysis._constant_summands import has_graph, summands
from gradgate.checker.analysis._queries import in_losses
from gradgate.checker.analysis._run import Run, once
from gradgate.checker.analysis._scopes import (
    Scope,
    called,
    definitions,
    is_read,
    key_of,
    names_read,
    own_nodes,
    scope_at,
    statements_at,
)
from gradgate.checker.analysis._slices import files_of, slice_at
from gradgate.checker.analysis._source import inside, statement_at
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._last_pass import only_the_last
from gradgate.checker.rules.flow._lost_terms import left_entries, made_by, overwritten_terms
from gradgate.checker.rules.flow._shown_values import SHOWS, displays, is_shown_with_graph, shown_by
from gradgate.checker.rules.flow._unused_weights import Weight, is_about, unused_weights
from gradgate.checker.rules.flow._zero_weights import zero_weights
from gradgate.events import Backward, Frame, Ids, Site

_KIND = re.compile(
    r"kl|contrast|consist|commit|aux|cycle|adv|distill|penalt|perceptual|style|tv_|smooth|align|ortho|spars|divers|"
    r"balance|codebook|prior|reg_|regulari|(?<!cross)(?<!cross_)entropy",
    re.IGNORECASE,
)
_TERM = re.compile(rf"(?=.*(loss|penalty|term|bonus))(?=.*({_KIND.pattern}))", re.IGNORECASE)
_WEIGHT = re.compile(r"weight|beta|lambda|coef|lam$|alpha|gamma|^\.?w$", re.IGNORECASE)
_TIMES = 2
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")  # functions up to Python 3.11


def _judge(run: Run) -> Iterator[Finding]:
    yield from only_the_last(run, RULE)
    yield from overwritten_terms(run, RULE, _KIND)
    yield from zero_weights(run, RULE)
    yield from (finding for finding, _ in _sums_only_shown(run))
    reported: set[str] = set()
    for cut in displays(run):
        shown = next((frame for frame in cut.site if frame.function not in _COMPREHENSIONS), cut.site[0])
        # The backward calls in the same function that reach the same parameters
        calls = [event for event in run.of(Backward) if event.site and event.site[0][::2] == shown[::2]]
        calls = [event for event in calls if event.reached & cut.parameters]
        left = _shown_only(run, shown, calls[0].site) if len(calls) >= _TIMES else {}
        for name, weight in left.items():
            if name in reported:
                continue
            reported.add(name)
            times = len(run.calls_at(calls[0].site))
            unread = (
                f", and its weight `{weight.name}` in line {weight.at.line} is never read" if weight else ""
            )
            weighed = f" with the weight `{weight.name}`" if weight else ""
            yield RULE.finding(
                _loss_line(calls[0].site),
                f"`{name}` has a graph and is displayed at line {shown.line}, but none of {times} backward calls "
                f"includes it{unread}.",
                why="The term is displayed, but training does not minimize it.",
                advice=f"Include `{name}` in the loss{weighed}, or compute it under torch.no_grad() if it "
                "is only displayed.",
                count=times,
                evidence={"shown_at": shown.line},
            )


def _shown_only(run: Run, shown: Frame, backward: Site) -> dict[str, Weight | None]:
    """Return the terms in a statement that neither the loss nor another line reads, and their unused weights."""
    statement, scope = statement_at(shown), scope_at(shown)
    if statement is None or scope is None:
        return {}
    here = set(ast.walk(statement))
    terms = [term.site for event in run.of(Backward) for term in event.terms]
    files = files_of([*(event.site for event in run.of(Backward)), *terms, (shown,)])
    in_loss = [node for _, node in slice_at(backward, files).nodes]
    read = [node for node in own_nodes(scope.node) if is_read(node)]
    idle = _of_unread_sums(scope.node, {node.id for node in read})
    elsewhere = {node.id for node in read if node not in here and node not in idle}
    made = {node.id for node in here if isinstance(node, ast.Name) and definitions(scope).get(node.id)}
    names = made - elsewhere - {node.id for node in in_loss if is_read(node)}
    lost = statement_at(backward[0]) if scope == scope_at(backward[0]) else None
    in_terms = made_by(names_read(*filter(None, [lost])), scope, files, deep=True)
    names = {name for name in names if made_by([name], scope, files).isdisjoint(in_terms)}
    weighed = {name for name in names if any(map(_is_weighed, made_by([name], scope, files)))}
    weighed = {
        name for name in weighed if not _is_used(name, scope, files, {id(node): node for node in in_loss})
    }
    left: dict[str, Weight | None] = {name: None for name in names if _TERM.search(name) or name in weighed}
    used = {key_of(node).lstrip(".") for node in in_loss}
    for weight in unused_weights(files):
        computed = {called(node) for node in here if isinstance(node, ast.Call)}
        for name in (names | computed) - left.keys():
            about = is_about(name, weight.term) if weight.term else bool(_KIND.search(name))
            if about and name != weight.name and not any(is_about(each, name) for each in used):
                left[name] = weight
    dicts = {node.id for node in here if isinstance(node, ast.Name) and "loss" in node.id.lower()}
    return left | {entry: None for each in dicts for entry in left_entries(each, in_loss, backward, _TERM)}


def _is_weighed(value: ast.AST) -> bool:
    """Return whether a term is computed with its weight: ``beta * kl_divergence(mu, logvar)``."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
        return False
    sides = ((value.left, value.right), (value.right, value.left))
    return any(
        _WEIGHT.search(key_of(weight)) and isinstance(term, ast.Call) and bool(_KIND.search(called(term)))
        for weight, term in sides
    )


def _is_used(part: str, scope: Scope, files: tuple[str, ...], losses: dict[int, ast.AST]) -> bool:
    """Return whether a loss includes a name, or an expression's names outside of calls, or a call of it."""
    value = ast.parse(part, mode="eval").body
    made = made_by([part], scope, files) if isinstance(value, ast.Name) else set()
    if any(id(each) in losses for each in made):
        return True
    calls = [call for each in (value, *made) for call in inside(ast.Call, each)]
    within = {id(node) for call in calls for node in ast.walk(call)}
    names = [node.id for node in inside(ast.Name, value) if id(node) not in within]
    texts = set(map(ast.unparse, calls))
    return any(id(each) in losses for each in made_by(names, scope, files)) or any(
        isinstance(node, ast.Call) and ast.unparse(node) in texts for node in losses.values()
    )


@once
def _sums_only_shown(run: Run) -> list[tuple[Finding, Ids]]:
    """Return a finding for each sum that the script only displays, if losses use some of its summands but not all.

    Also return the parameters behind each sum.
    """
    losses, found = dict(in_losses(run)), []
    for event in run.of(Backward):
        for frame in {frame for term in event.terms for frame in term.site} if event.trainer else ():
            losses |= {id(node): node for each in statements_at(frame) for node in ast.walk(each)}
    shown: dict[tuple[Frame, ast.BinOp], Ids] = {}
    for cut in displays(run):
        for each in _sums(cut.site[0], cut.op):
            shown[each] = shown.get(each, frozenset()) | cut.parameters
    for (frame, total), ids in shown.items():
        scope = scope_at(frame)
        if scope is None or id(total) in losses:
            continue
        used, left = [], []
        for inner, part in summands(scope, total, run.files):
            if _is_used(ast.unparse(part), inner, run.files, losses):
                used.append(ast.unparse(part))
            elif has_graph(run, inner, part, run.files) or is_shown_with_graph(run, frame, part):
                left.append(ast.unparse(part))
        if used and left:
            times = len(run.of(Backward))
            finding = RULE.finding(
                frame._replace(line=total.lineno),
                f"`{ast.unparse(total)}` is only displayed: {times} backward calls include `{used[0]}`, but not "
                f"`{left[0]}`.",
                why="The sum is displayed, but training does not minimize it.",
                advice=f"Back-propagate the sum instead of `{used[0]}`.",
                count=times,
                evidence={"shown_at": frame.line},
            )
            found.append((finding, ids))
    return found


def behind_shown_sums(run: Run) -> Ids:
    """Return the parameters behind sums of losses that the script only displays."""
    return frozenset().union(*(ids for _, ids in _sums_only_shown(run)))


def _sums(shown: Frame, op: str) -> Iterator[tuple[Frame, ast.BinOp]]:
    """Yield the sums that a line shows, as ``total.item()`` or in an f-string, if the function only shows them."""
    scope, statement = scope_at(shown), statement_at(shown)
    if scope is None or statement is None:
        return
    shows = {id(value) for node in own_nodes(scope.node) for value in shown_by(node, SHOWS)}
    for value in (value for node in ast.walk(statement) for value in shown_by(node, (op,))):
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            yield shown, value
        name = getattr(value, "id", "")
        made = definitions(scope).get(name, ())
        total = made[0].value if len(made) == 1 and isinstance(made[0].statement, ast.Assign) else None
        total = total.operand if isinstance(total, ast.UnaryOp) else total
        read = (node for node in own_nodes(scope.node) if is_read(node) and node.id == name)
        if isinstance(total, ast.BinOp) and all(id(node) in shows for node in read):
            yield shown, total


def _of_unread_sums(function: ast.AST, read: set[str]) -> set[ast.AST]:
    """Return the names in sums whose result nothing reads: ``total = loss + penalty``."""
    found: set[ast.AST] = set()
    for node in own_nodes(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and target.id not in read:
                found |= set(ast.walk(node.value))
    return found


def _loss_line(backward: Site) -> Frame:
    """Return the line that adds up the loss, or else the backward call."""
    frame = backward[0]
    scope = scope_at(frame)
    for node in inside(ast.Attribute, *statements_at(frame)):
        if node.attr == "backward" and isinstance(node.value, ast.Name) and scope is not None:
            made = definitions(scope).get(node.value.id, ())
            if len(made) == 1 and isinstance(made[0].value, (ast.BinOp, ast.Name)):
                return frame._replace(line=made[0].value.lineno)
    return frame


RULE = Rule("GG407", "term-left-out", "warning", __doc__ or "", _judge)
