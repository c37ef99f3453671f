"""Finds loss terms that are detached from the parameters that the rest of the loss trains."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._constant_summands import constant_summands, is_count
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import called, scope_at, statements_at
from gradgate.checker.analysis._slices import Slice, slice_at
from gradgate.checker.analysis._source import function_at, inside, loops_around, spans, text_of
from gradgate.checker.analysis._statement import Statement
from gradgate.checker.fixes import Fix
from gradgate.checker.rules._rule import Finding, FixAt, Rule
from gradgate.checker.rules.flow._cut_samples import RESAMPLE, SAMPLES
from gradgate.checker.rules.flow._graph_fixes import (
    resampled,
    unless_compared,
    unless_shared,
    untrained_modules,
    with_graph,
    without_cut,
)
from gradgate.events import Backward, Combined, Cut, Differentiated, Frame, Ids, Site

TENSORS = ("detach", "detach_", "data", "Parameter")  # cuts whose result is a tensor
WHY = "The loss includes the detached part, but training does not minimize it."
_DERIVED = (
    "Training ignores how the derivatives change. If they update parameters, only first-order terms stay."
)
WITH_GRAPH = "Pass create_graph=True, so that the gradient can be differentiated."
_SHARED = (
    "Run the network a second time, on the value that is not detached, and compute this term from that output. "
    "Keep the pass on the detached value: the loss at line {} needs it."
)
_ATTACHED = "Add the value itself instead of a detached copy."
_OUTSIDE = "Compute {} outside of torch.no_grad(). Targets may stay inside."
_NUMPY = "Compute the term with torch instead of numpy, from the value that is not detached."
_PARAMETERS = "Compute the term from model.parameters(): state_dict() returns detached copies."
_UNTRAINED = "Compute the term from the output of the network that the loss trains."
_DIFFERENTIABLE = "Counts and comparisons have no gradient: use probabilities as weights instead."
_CALLS = 2  # number of backward calls whose terms are followed to the parameters


def idle_terms(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report the terms that reach only other optimizers' parameters, whose gradients no step uses."""
    used: dict[tuple[Site, Ids], Ids] = defaultdict(frozenset)  # one line may back-propagate several losses
    for number, several in run.by_backward.items():
        if number >= 0:
            atoms = (part.atom for part in several if part.consumed or part.touched)
            loss = run.backward(number).site, run.backward(number).reached
            used[loss] = used[loss].union(*atoms)
    terms: dict[tuple[Site, Ids, Site], list[tuple[Ids, range]]] = defaultdict(list)
    spans: dict[Site, list[range]] = defaultdict(list)  # the events since the previous backward call
    site: Site = ()
    trains: Ids = frozenset()
    before = last = -1
    for number, event in run.numbered(Backward, Combined):
        summands: list[tuple[Site, Ids]] = []
        if isinstance(event, Backward):
            before, last = last, number
            spans[event.site].append(range(before, last))
            site, trains = event.site, used[event.site, event.reached]
            if any(term.reach & trains for term in event.terms):
                summands = [(term.site, term.reach) for term in event.terms]
        elif isinstance(event, Combined) and event.how == "summand" and event.backward == site:
            summands = [(event.site, event.parameters)]
        for line, ids in summands:
            if trains and line and ids and not ids & trains:
                terms[site, trains, line].append((ids, range(before, last)))
    for (backward, trained, made), found in terms.items():
        reach: Ids = frozenset().union(*(ids for ids, _ in found))
        if len(found) < _CALLS or not all(run.owners.get(number) for number in reach):
            continue
        part, ops = slice_at(made, run.files), (*TENSORS, *SAMPLES)
        detached = {
            number: event
            for number, event in run.numbered(Cut)
            if event.op in ops and event.site and event.parameters & trained
        }
        cuts = {n: cut for n, cut in detached.items() if part.holds(cut.site[0], cut.op)}
        # A cut between the previous backward call and this one belongs to this loss.
        own = {n: cut for n, cut in cuts.items() if any(n in span for _, span in found)}
        others = {site for (site, _), ids in used.items() if site and site != backward and not ids & trained}
        others = {site for site in others if cuts and spans[site][0].stop > min(cuts)}
        others -= {site for site in others for span in spans[site] if any(n in span for n in detached)}
        for cut in [*(own or cuts).values()][-1:]:
            drawn = cut.op in SAMPLES
            drop: FixAt = partial(without_cut, ops=(cut.op,))
            drop = partial(unless_compared, ops=(cut.op,), modules=run.words(run.parameters), fix=drop)
            fix = resampled if drawn else drop
            needing = () if drawn else others  # losses that need the detached value
            shared = [site for site in needing if slice_at(site, run.files).holds(cut.site[0], cut.op)]
            sure = drawn or (len({each.site[0] for each in own.values()}) == 1 and not shared)
            yield rule.finding(
                cut.site,
                f"The loss of line {backward[0].line} trains {run.names(trained)}, but line {cut.site[0].line} "
                f"detaches the term of line {made[0].line} from {'it' if len(trained) == 1 else 'them'}. The term "
                f"only adds gradients to {run.names(reach)}, which no step uses.",
                why=WHY,
                advice=RESAMPLE
                if drawn
                else _SHARED.format(shared[0][0].line)
                if shared
                else "Don't detach the value: gradients can flow through a network that isn't trained.",
                fix=fix if sure else (),
                count=len(run.calls_at(backward)),
                evidence={"parameters": len(reach)},
                about=reach,
            )


def constant_terms(run: Run, rule: Rule, missing: Ids) -> Iterator[tuple[Finding, list[Frame]]]:
    """Yield a finding for each summand of the loss that was detached from its graph, with the lines that cut it.

    ``missing`` are the optimizers' parameters that get no gradient.
    """
    calls: dict[Site, list[tuple[set[Site], Counter[Site]]]] = defaultdict(list)
    for event in run.of(Backward):
        if event.reached & run.owned and event.terms:
            constants = [term.site for term in event.terms if term.kind == "constant"]
            others = Counter(term.site for term in event.terms if term.kind != "constant")
            calls[event.site].append((set(constants) - {()}, others))
    reached = defaultdict[Site, Ids](
        frozenset, {term.site: event.reached for event in run.of(Backward) for term in event.terms}
    )
    times = {site: count for several in calls.values() for site, count in _always_constant(several)}
    penalties = {event.site[0][:2] for event in run.of(Differentiated) if event.site}
    reported: set[Frame] = set()
    for part, site, cuts in constant_summands(run, times, run.files):
        if not cuts:
            yield _of_constants(run, rule, part, site, times[site]), []
            continue
        if reported.issuperset(cuts):
            continue
        reported.update(cuts)
        likely = _likely(run, cuts, site[0], reached[site], missing)
        cut = likely[0]
        penalty, untrained = cut[:2] in penalties, _is_untrained(run, cut, reached[site])
        counts = any(map(is_count, inside(ast.AST, *statements_at(cut))))
        how, advice = "its graph is cut here", _DIFFERENTIABLE if counts else _ATTACHED
        if "no_grad" in text_of(cut):
            trained = run.words(reached[site])
            inner = [call for call in inside(ast.Call, *statements_at(cut)) if called(call) in trained]
            advice = _OUTSIDE.format(
                f"`{ast.unparse(inner[0])}`" if inner else "the parts that training should change"
            )
        elif "state_dict" in text_of(cut):
            advice = _PARAMETERS
        elif ".numpy(" in text_of(cut):
            advice = _NUMPY
        # A constant term compares its detached values with constants only, but they may have other uses.
        drop: Fix | FixAt = partial(
            unless_shared, fix=partial(without_cut, ops=("detach", "item", "data"), part=part)
        )
        if penalty:
            advice, drop = WITH_GRAPH, with_graph
        if len(likely) > 1:
            lines = ", ".join(str(each.line) for each in likely[:-1])
            how = f"lines {lines} and {likely[-1].line} cut its graph"
        if untrained:
            how, advice = "no trained parameter enters this term", _UNTRAINED
        sure, message, why = (
            len(likely) == 1 and not untrained,
            "`{}` is added to the loss at line {} as a constant: {}.",
            WHY,
        )
        targets = [each for node in statements_at(site[0]) for each in getattr(node, "targets", ())]
        if penalty and ast.unparse(part) in map(ast.unparse, targets):  # a running sum also has other parts
            message, why = (
                "The loss of line {1} uses derivatives that are constants: line {3} keeps no graph of them.",
                _DERIVED,
            )
        finding = rule.finding(
            cut if sure else site,
            message.format(ast.unparse(part), site[0].line, how, cut.line),
            why=why,
            advice=advice,
            fix=drop if sure else (),
            count=times[site],
            evidence={"added_at": site[0].line, "times": times[site]},
            about=reached[site],
        )
        yield finding, cuts


def _of_constants(run: Run, rule: Rule, part: ast.expr, site: Site, times: int) -> Finding:
    return rule.finding(
        site,
        f"`{ast.unparse(part)}` is added to the loss as a constant: no trained parameter enters this term.",
        why=WHY,
        advice=_UNTRAINED,
        count=times,
        evidence={"added_at": site[0].line, "times": times},
    )


def _always_constant(calls: list[tuple[set[Site], Counter[Site]]]) -> Iterator[tuple[Site, int]]:
    """Yield each line that never adds anything but a constant, and the number of calls in which it adds one.

    Each entry of ``calls`` holds the lines that add constants and the lines of the other terms. If a call lacks the
    constant but has another term instead, the summand has a graph in that call, for example after a warm-up. It is
    then constant on purpose.
    """
    for site in sorted(set[Site]().union(*(constants for constants, _ in calls))):
        having = [others for constants, others in calls if site in constants]
        without = [others for constants, others in calls if site not in constants]
        if all(any(each <= other for other in having) for each in without):
            yield site, len(having)


def _likely(run: Run, cuts: list[Frame], added: Frame, reached: Ids, missing: Ids) -> list[Frame]:
    """Leave out cuts of parameters that the loss doesn't train, and cuts outside of the loop around the sum.

    If a cut concerns parameters that get no gradient at all, only such cuts stay: the others may be targets.
    A cut that comes after the sum, or in another loop, detaches a stored value, such as a target. If all cuts are
    of this kind, all are returned.
    """
    steps = run.optimizers_of(reached)
    of = defaultdict[tuple[str, int], set[int]](set)  # line -> optimizers of the parameters that it cuts
    for event in run.of(Cut):
        if event.site:
            of[event.site[0][:2]] |= run.optimizers_of(event.parameters)
    whole = {
        event.site[0][:2]
        for event in run.of(Cut)
        if event.site and event.parameters and event.parameters <= missing
    }
    own = [cut for cut in cuts if cut[:2] in whole] or [
        cut
        for cut in cuts
        if (not of[cut[:2]] or of[cut[:2]] & steps) and not _is_untrained(run, cut, reached)
    ]
    around = next(iter(loops_around(added)), function_at(added))
    near = [
        cut
        for cut in own or cuts
        if cut.file == added.file
        and around is not None
        and spans(around, cut.line)
        and cut.line <= added.line
    ]
    return sorted(near or own or cuts)


def _is_untrained(run: Run, cut: Frame, reached: Ids) -> bool:
    """Return whether a ``no_grad`` block calls only modules that have no parameter in the loss's optimizers.

    Such a module still passes gradients on if its input is the output of a trained module.
    """
    at, scope = Statement.at(cut), scope_at(cut)
    steps = run.optimizers_of(reached)
    trained = run.words(number for number in run.owned if run.owners[number] & steps)
    if at is None or scope is None or not isinstance(at.node, ast.With):
        return False
    calls = inside(ast.Call, at.node)
    given = Slice([(scope, each) for call in calls for each in call.args], run.files)
    calls += inside(ast.Call, *(node for _, node in given.nodes))
    return bool(untrained_modules(at, trained)) and trained.isdisjoint(map(called, calls))
