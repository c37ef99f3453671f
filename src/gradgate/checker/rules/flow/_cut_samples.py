"""Finds samples that are detached from the distribution that the rest of the loss trains."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from gradgate.checker.analysis._constant_summands import CONSTANT, summands
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import (
    called,
    is_function,
    names_read,
    names_stored,
    own_nodes,
    scope_at,
    statements_at,
)
from gradgate.checker.analysis._slices import Slice
from gradgate.checker.analysis._source import function_at, inside, statement_at, text_of
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._graph_fixes import resampled
from gradgate.events import Backward, Combined, Cut, Frame, Ids, Site

RESAMPLE = "Draw the sample with rsample(), or as mean + std * torch.randn_like(std)."
SAMPLES = ("sample", "drawn")  # samples that a layer, or only other operations, use
_CALLS = 2  # number of backward calls with the sample
_ENDS = ("detach", "item", "log_prob", "step")
_LOOKS = 3  # number of recorded gradients, all zero


def cut_samples(run: Run, rule: Rule, missing: Ids, in_losses: Iterable[ast.AST]) -> Iterator[Finding]:
    """Report each line that draws a sample from a trained distribution without keeping the graph."""
    in_losses = list(in_losses)
    scores = [node for node in in_losses if isinstance(node, ast.Call) and called(node) == "log_prob"]
    scored = {
        frame: ids
        for frame, ids in _samples(run, in_losses).items()
        if not any(_may_score(frame, score) for score in scores)
    }
    for frame, ids in (scored | _in_constants(run)).items():
        if not ids or ids & missing:
            continue
        call = "sample()" if ".sample" in text_of(frame) else "This"
        yield rule.finding(
            frame,
            f"{call} detaches the loss from {run.names(ids)}: no gradient flows through the sample into the "
            "distribution.",
            why="Only loss terms that don't use the sample train the distribution.",
            advice=RESAMPLE,
            fix=resampled,
            count=len(run.calls_reaching(ids)),
            evidence={"parameters": len(ids)},
        )


def _in_constants(run: Run) -> dict[Frame, Ids]:
    """Return each line that draws a sample for a summand that has no graph, with the distribution's parameters.

    The summand is the output of a network that the loss doesn't train, such as a frozen critic. A sample that is
    only scored is constant on purpose.
    """
    times: Counter[tuple[Frame, Site, Ids]] = Counter()
    drawn: dict[Frame, Ids] = {}
    before: dict[Frame, Ids] = {}
    reached: Ids = frozenset()
    for event in run.of(Backward, Cut, Combined):
        if isinstance(event, Backward):
            reached, before = event.reached, {}  # the samples of a loss are recorded after the loss
        elif isinstance(event, Cut) and event.op in SAMPLES and event.site:
            before[event.site[0]] = event.parameters & reached & run.owned
        elif isinstance(event, Combined) and event.how == "constant" and event.site:
            drawn |= before
            times.update((frame, event.site, reached) for frame in before)
    return {
        frame: drawn[frame]
        for (frame, site, ids), count in times.items()
        if count >= _CALLS and _is_judged(run, site, frame, ids)
    }


def _is_judged(run: Run, site: Site, drawn: Frame, reached: Ids) -> bool:
    """Return whether a line's summand is computed from a sample by a network the loss doesn't train."""
    others = run.words(run.parameters.keys() - reached) - run.words(reached)
    judging: list[tuple[str, ast.Call]] = []  # calls of other networks: their inputs count, not their insides

    def end(file: str, node: ast.AST) -> Frame | None:
        name = called(node) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.Call) and name in others:
            judging.append((file, node))
            return Frame(file, node.lineno, name)
        sampled = "sample" in name and (file, getattr(node, "lineno", 0)) == drawn[:2]
        return drawn if sampled else CONSTANT if name in _ENDS else None

    for scope in filter(None, [scope_at(site[0])]):
        for statement in statements_at(site[0]):
            added = isinstance(statement, ast.AugAssign)
            for inner, part in summands(scope, getattr(statement, "value", None), run.files, added):
                judging.clear()
                ended = Slice([(inner, part)], run.files, end).ended
                judged: list[Frame] = []
                for file, call in judging:  # grows during the loop
                    around = scope_at(Frame(file, call.lineno, ""))
                    given = [*call.args, *(each.value for each in call.keywords)] if around else []
                    judged += Slice([(around, each) for each in given if around], run.files, end).ended
                if drawn in judged and CONSTANT not in (*ended, *judged):
                    return True
    return False


def _samples(run: Run, in_losses: list[ast.AST]) -> dict[Frame, Ids]:
    """Return each line that draws a sample for a loss, with the distribution's parameters.

    Other terms of the loss train these parameters, or their gradients are zero in each step.
    """
    several = run.parameters.values()
    idle = {each.id for each in several if each.looks >= _LOOKS and each.looks == each.zeros} & run.owned
    calls = {id(node) for node in in_losses if isinstance(node, ast.Call) and called(node) == "sample"}
    drawn: dict[Frame, Ids] = {}
    reached: Ids = frozenset()
    for event in run.of(Cut, Backward):
        if isinstance(event, Backward):
            reached = event.reached  # the samples of a loss are recorded after the loss
        elif event.op == "sample" and event.site:
            ids = event.parameters & reached & run.owned
            drawn[event.site[0]] = drawn.get(event.site[0], frozenset()) | ids
        elif (
            event.op == "drawn"
            and event.site
            and any(id(call) in calls for call in inside(ast.Call, statement_at(event.site[0])))
        ):
            drawn[event.site[0]] = event.parameters & idle
    return drawn


def _may_score(drawn: Frame, score: ast.Call) -> bool:
    """Return whether ``log_prob`` may be called on a sample, so that its gradient reaches the distribution.

    In the function that draws the sample, the argument must contain the sample's variable or one computed from it:
    a decoder computes the log-probability of data.
    """
    function, statement = function_at(drawn), statement_at(drawn)
    own = list(own_nodes(function)) if function is not None and is_function(function) else []
    if score not in own or not isinstance(statement, ast.Assign):
        return True
    names = names_stored(*statement.targets)
    assignments = [node for node in own if isinstance(node, ast.Assign)]
    for _ in assignments:  # values computed from the sample
        names |= names_stored(*(each for each in assignments if names & names_read(each.value)))
    return bool(names & names_read(*score.args))
