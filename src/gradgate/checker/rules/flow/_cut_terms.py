"""Terms of a loss, and samples, that are cut off from what the rest of the loss trains."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import is_function, own_nodes
from gradgate.checker.analysis._slices import slice_at
from gradgate.checker.analysis._source import function_at, statement_at
from gradgate.events import Backward, Cut, Frame, Ids, Site

_CALLS = 2  # whose terms are followed to the parameters


@dataclass(frozen=True)
class IdleTerm:
    """A term that no step's parameters get a gradient from.

    Attributes:
        cut: where the term is cut off.
        backward: the line that back-propagates the loss.
        made: the line of the term.
        trained: the parameters that the loss trains.
        reach: those that the term reaches.
    """

    cut: Cut
    backward: Site
    made: Site
    trained: Ids
    reach: Ids


def idle_terms(run: Run, files: tuple[str, ...], ops: Collection[str]) -> Iterator[IdleTerm]:
    """Yield the terms that only reach other optimizers' parameters, which no step uses."""
    used: dict[tuple[Site, Ids], Ids] = defaultdict(frozenset)  # one line may back-propagate several losses
    for number, several in run.by_backward.items():
        if number >= 0:
            atoms = (part.atom for part in several if part.consumed or part.touched)
            loss = run.backward(number).site, run.backward(number).reached
            used[loss] = used[loss].union(*atoms)
    terms: dict[tuple[Site, Ids, Site], list[Ids]] = defaultdict(list)
    for event in run.of(Backward):
        trained = used[event.site, event.reached]
        idle = [term for term in event.terms if term.reach and term.site and not term.reach & trained]
        if trained and len(idle) < sum(bool(term.reach) for term in event.terms):
            for term in idle:
                terms[event.site, trained, term.site].append(term.reach)
    for (backward, trained, made), reaches in terms.items():
        reach: Ids = frozenset().union(*reaches)
        if len(reaches) < _CALLS or not all(run.owners.get(number) for number in reach):
            continue
        cuts = [
            event for event in run.of(Cut) if event.op in ops and event.site and event.parameters & trained
        ]
        part = slice_at(made, files)
        cuts = [event for event in cuts if part.holds(event.site[0], event.op)]
        if cuts:
            yield IdleTerm(cuts[-1], backward, made, trained, reach)


def samples(run: Run) -> dict[Frame, Ids]:
    """Return the lines that draw a sample for a loss, with what other terms of the same loss train."""
    drawn: dict[Frame, Ids] = {}
    following: Ids = frozenset()
    for event in reversed(run.of(Cut, Backward)):
        if isinstance(event, Backward):
            following = event.reached
        elif event.op == "sample" and event.site:
            drawn[event.site[0]] = event.parameters & following & run.owned
    return drawn


def may_score(drawn: Frame, score: ast.Call) -> bool:
    """Say whether a ``log_prob`` may be that of a sample: its gradient then reaches the distribution.

    In the function that draws the sample, the name shows whose it is: a decoder's log-probability is one of data.
    """
    function, statement = function_at(drawn), statement_at(drawn)
    own = list(own_nodes(function)) if function is not None and is_function(function) else []
    if score not in own or not isinstance(statement, ast.Assign):
        return True
    names = _names(statement.targets, ast.Store)
    assignments = [node for node in own if isinstance(node, ast.Assign)]
    for _ in assignments:  # what is computed from it
        names |= _names([each for each in assignments if names & _names([each.value], ast.Load)], ast.Store)
    return bool(names & _names(score.args, ast.Load))


def _names(nodes: Iterable[ast.AST], kind: type[ast.expr_context]) -> set[str]:
    inner = (each for node in nodes for each in ast.walk(node))
    return {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, kind)}
