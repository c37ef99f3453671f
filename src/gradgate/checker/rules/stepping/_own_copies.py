"""Finds copies that are none: a target that is the trained network itself, a state that shares its memory."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import chain, permutations

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called, definitions, key_of, scopes_of
from gradgate.checker.analysis._source import inside, loops_around, path_to, spans, statement_at
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Frame, Ids, ModelLoaded, Site, Stepped, Written

_ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_PARAMETERS = r"(.+)\.(?:(?:named_)?parameters|state_dict)\("


def own_copies(run: Run, rule: Rule) -> Iterator[Finding]:
    """Report what is copied onto itself after steps have changed it."""
    for site, events in grouped((event.site, (n, event)) for n, event in run.numbered(ModelLoaded)).items():
        late = [event for number, event in events if site and _trained(run, event.parameters, number)]
        if not site or not all(event.own for _, event in events):
            continue
        if not late:
            late = [event for number, event in events if not event.parameters and _before(run, number)]
            yield from _itself(run, rule, site, len(late)) if len(late) > 1 else ()
            continue
        kept = [event for event in late if event.steps or _best(event)]
        if kept:
            yield _kept(run, rule, kept[-1], len(late))
        else:
            taken = statement_at(innermost(late[-1].taken))
            names = _of(statement_at(site[0]), "load_state_dict"), _of(taken, "state_dict")
            yield from _alias(run, rule, site, names, late[-1].parameters, len(late))
    writes = [pair for pair in run.numbered(Written) if pair[1].target == "value" and pair[1].site]
    for site, several in grouped((event.site, (number, event)) for number, event in writes).items():
        ids = union(event.parameters for _, event in several)
        late_writes = [number for number, _ in several if _trained(run, ids, number)]
        if late_writes and all(event.same for _, event in several):
            for loop in loops_around(site[0])[:1]:
                found = [re.match(_PARAMETERS, ast.unparse(each)) for each in _zipped(loop)]
                texts = [each[1] for each in found if each]
                if len(texts) == 2:
                    times = len({_before(run, number) for number in late_writes})
                    yield from _alias(run, rule, site, (texts[0], texts[1]), ids, times)


def _before(run: Run, number: int) -> int:
    """Return how many steps come before an event."""
    return sum(step < number for step, _ in run.numbered(Stepped))


def _trained(run: Run, ids: Ids, number: int) -> bool:
    """Return whether any step changes these parameters, and the first such step comes before an event."""
    if not ids & run.moved:
        return False
    return next((step for step, event in run.numbered(Stepped) if event.used & ids), number) < number


def _best(event: ModelLoaded) -> bool:
    """Return whether a state was kept in a loop, if a comparison held, and was loaded after the loop."""
    taken, at = innermost(event.taken), innermost(event.site)
    path = path_to(taken.file, taken.line)
    tests = [node.test for node in path if isinstance(node, ast.If)]
    compared = any(isinstance(op, _ORDERED) for each in inside(ast.Compare, *tests) for op in each.ops)
    loops = loops_around(taken)
    return compared and bool(loops) and not (at.file == taken.file and spans(loops[-1], at.line))


def _kept(run: Run, rule: Rule, event: ModelLoaded, times: int) -> Finding:
    of = _of(statement_at(innermost(event.taken)), "state_dict") or "model"
    return rule.finding(
        event.taken,
        f"The state that is kept here shares its memory with {run.names(event.parameters)}: later steps change it "
        f"too, and line {innermost(event.site).line}, which loads it, restores nothing.",
        why="state_dict() returns the parameters themselves, not copies, so the values of this moment are lost.",
        advice=f"Keep a copy: copy.deepcopy({of}.state_dict()).",
        count=times,
        evidence={"steps": event.steps},
    )


def _itself(run: Run, rule: Rule, site: Site, times: int) -> Iterator[Finding]:
    """Report a network that loads its own state, as one statement says."""
    at = statement_at(site[0])
    name = _of(at, "load_state_dict")
    if name and name == _of(at, "state_dict"):
        source = _copied(run, ast.parse(name, mode="eval").body) or "other"
        yield rule.finding(
            site,
            f"{name} loads its own state, {times} times, so no value changes.",
            why=f"{name} keeps the values it began with, however long the other networks are trained.",
            advice=f"Load the state of the network that is trained: {name}.load_state_dict({source}.state_dict()).",
            count=times,
            evidence={"copies": times},
        )


def _alias(
    run: Run, rule: Rule, site: Site, names: tuple[str, str], ids: Ids, times: int
) -> Iterator[Finding]:
    """Report one network under two names, unless it is a small part that two networks share."""
    whole = [run.held(each) for each in run.optimizers_of(ids)]
    if not all(names) or names[0] == names[1] or not any(2 * len(ids & each) >= len(each) for each in whole):
        return
    given = [list(map(ast.unparse, call.args)) for frame in site[1:] for call in _calls(frame)]
    pairs = [names, names[::-1], *chain(*(permutations(texts, 2) for texts in given))]
    made = [(frame, pair) for pair in pairs for frame in _made_same(run, *pair)]
    where, (one, other) = made[0] if made else (site[0], names)
    yield rule.finding(
        where,
        f"`{one}` and `{other}` are one network: line {site[0].line} copies its parameters onto themselves, "
        f"{times} time{'s'[: times - 1]}.",
        why=f"`{one}` does not keep earlier values: each step changes it together with `{other}`.",
        advice=f"Make a network of its own: {one} = copy.deepcopy({other}).",
        count=times,
        evidence={"copies": times},
        about=ids,
    )


def _made_same(run: Run, one: str, other: str) -> Iterator[Frame]:
    """Yield the lines that give both names one value: ``one = other``, or the same value as ``other``."""
    keys = [key_of(ast.parse(text, mode="eval").body) for text in (one, other)]
    for scope in chain(*map(scopes_of, run.files)):
        first, second = (definitions(scope).get(key, ()) for key in keys)
        values = {
            other,
            *(ast.unparse(each.value) for each in second if not isinstance(each.value, ast.Call)),
        }
        for each in first:
            joint = any(each.statement is also.statement for also in second) and each.place is None
            if joint or ast.unparse(each.value) in values:
                yield Frame(scope.file, getattr(each.statement, "lineno", 1), "")


def _copied(run: Run, name: ast.expr) -> str:
    """Return the network that a name was copied from, as source."""
    for scope in chain(*map(scopes_of, run.files)):
        for each in definitions(scope).get(key_of(name), ()):
            for call in inside(ast.Call, each.value):
                if called(call) == "deepcopy" and call.args:
                    return ast.unparse(call.args[0])
    return ""


def _of(statement: ast.AST | None, method: str) -> str:
    """Return the object whose method a statement calls, as source."""
    for call in inside(ast.Call, statement):
        if called(call) == method and isinstance(call.func, ast.Attribute):
            return ast.unparse(call.func.value)
    return ""


def _calls(frame: Frame) -> list[ast.Call]:
    return list(inside(ast.Call, statement_at(frame)))


def _zipped(loop: ast.AST) -> list[ast.expr]:
    """Return the two values that a loop goes through together."""
    for call in inside(ast.Call, getattr(loop, "iter", None)):
        if called(call) == "zip" and len(call.args) == 2:
            return call.args
    return []
