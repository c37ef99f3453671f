"""A term of the loss compares a value with itself.

## What it does
Looks for terms of the loss whose two sides are always equal:

- distances (``mse_loss``, ``smooth_l1_loss``, ``huber_loss``, a power or absolute value of a difference), if both
  sides were equal, element by element, in each backward call;
- divergences and cross entropies, if both distributions were equal up to rounding: the target is computed from the
  output, the teacher is the student, or two views are augmented identically;
- labels that the model's own predictions overwrite before the loss uses them;
- ratios, and distances inside a term, whose sides are equal and both have a gradient. An example is PPO's ratio
  with the new log-probability in place of the old, or with a detached copy of it, if nothing reads the old one;
- a value that one line adds and subtracts: a straight-through estimator without ``detach``, or a penalty on the
  distance to earlier weights that are clones with a graph.

## Why is this bad?
The gradient of this term is zero. The mistake is easy to miss if the loss has other terms, because the loss still
falls.

## Example
    logits = student(x)
    with torch.no_grad():
        target = student(x)                      # should be teacher(x)
    loss = F.cross_entropy(logits, y) + 10 * F.mse_loss(logits, target)

## Use instead
        target = teacher(x)

## Known limits
A term is reported from the fifth backward call on, and a part of a term from the third, if the sides were equal in
all calls. Distributions are compared if ``log_softmax`` computes one of them. A cross entropy with the model's own
predictions is reported only if the predictions overwrite the labels' name, and only a comparison with the
predictions reads the labels: pseudo-labels look the same otherwise. A target that is computed from the input is
not seen, because an autoencoder does this on purpose. A ratio to a detached copy is reported only if it is clipped
and nothing reads the log-probabilities that the script stores. Such a ratio is right if each sample is used once.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.MSELoss.html.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator

from gradgate.checker.analysis._queries import Combination, combinations
from gradgate.checker.analysis._run import Run, innermost
from gradgate.checker.analysis._scopes import called, definitions, key_of, names_read, own_nodes, scope_at
from gradgate.checker.analysis._slices import files_of, slice_at
from gradgate.checker.analysis._source import nodes_of, statement_at
from gradgate.checker.analysis._statement import Statement, operand
from gradgate.checker.fixes import Fix, Replace
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Frame, Ids, Site, Stepped

_LEAST = 5  # backward calls
_LOG_PROB = re.compile(r"log_?p", re.IGNORECASE)
_FILLS = ("append", "extend", "clear")
_READ = 3  # number of backward calls whose graphs are read


def _judge(run: Run) -> Iterator[Finding]:
    terms = list(_equal_sides(run))
    yield from terms
    yield from _parts(run, {(term.file, term.line) for term in terms})
    yield from _overwritten_labels(run)
    yield from _cancelled(run)


def _equal_sides(run: Run) -> Iterator[Finding]:
    equal: dict[tuple[Site, int], list[bool]] = defaultdict(list)  # one line may make several terms
    reached: dict[Site, Ids] = defaultdict(frozenset)
    for event in run.of(Backward):
        for place, term in enumerate(event.terms if event.reached & run.owned and not event.create else ()):
            equal[term.site, place].append(term.equal)
            reached[term.site] |= event.reached
    terms = Counter(site for site, _ in equal)
    found = Counter(site for (site, _), calls in equal.items() if len(calls) >= _LEAST and all(calls))
    for (site, _), calls in equal.items():
        # A loop over all pairs also compares each value with itself.
        if site and len(calls) >= _LEAST and all(calls) and 2 * found[site] > terms[site]:
            yield RULE.finding(
                site,
                f"This term compares two values that are equal in each of {len(calls)} backward calls.",
                why="The gradient of the term is zero, so the term trains nothing.",
                advice="Compare with a different value: the labels, another model's output, or another view of "
                "the data.",
                count=len(calls),
                evidence={"backwards": len(calls)},
                about=reached[site],
            )


def _overwritten_labels(run: Run) -> Iterator[Finding]:
    """Report labels that the model's predictions overwrite before anything reads them."""
    reached = {event.site: event.reached for event in run.of(Backward) if event.reached & run.owned}
    own = [each for each in combinations(run, ["own predictions"]) if len(each.numbers) >= _READ]
    lines = {frame[:2] for each in own for frame in each.site}
    reported: set[Frame] = set()
    for site, ids in reached.items():
        for file, node in slice_at(site, files_of([site])).nodes:
            frame = Frame(file, getattr(node, "lineno", 0), "")
            stored = _overwritten_before(node, frame, seen=frame[:2] in lines)
            if stored is None or frame in reported:
                continue
            reported.add(frame)
            labels = ast.unparse(node.args[1])  # type: ignore[attr-defined]
            yield RULE.finding(
                frame._replace(line=stored[1]),
                f"This line overwrites the `{labels}` of line {stored[0]} with the model's own predictions, "
                f"which become the targets of the loss at line {frame.line}.",
                why="The labels are never used: the model only becomes more confident in its own predictions.",
                advice="Give the predictions another name, and compare with the labels.",
                severity="warning",
                count=len(run.calls_at(site)),
                evidence={"loss_at": frame.line},
                about=ids,
            )


def _cancelled(run: Run) -> Iterator[Finding]:
    """Report lines that add and subtract a value, such as ``x + (q - x)``."""
    for each in combinations(run, ["cancelled", "replaced"]):
        yield RULE.finding(
            each.site,
            f"This line adds and subtracts the same value, so {run.names(each.ids)} get no gradient through it.",
            why="The two gradients of the value are equal and opposite.",
            advice="Detach one of the two: x + (q - x.detach()) passes the gradient to x and q, and "
            "x + (q - x).detach() only to x. Copy earlier weights by p.detach().clone().",
            fix=_passed_straight if each.how == "cancelled" else (),  # y may have a loss of its own
            **each.measured,
        )


def _passed_straight(at: Statement) -> Fix:
    """Detach the difference: ``x + (q - x).detach()``."""
    for node in at.expressions():
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for value, rest in ((node.left, node.right), (node.right, node.left)):
                difference = isinstance(rest, ast.BinOp) and isinstance(rest.op, ast.Sub)
                if difference and operand(rest.right) == operand(value):  # type: ignore[attr-defined]
                    new = f"{operand(value)} + ({ast.unparse(rest)}).detach()"
                    return (Replace(at.line, ast.unparse(node), new),)
    return ()


def _overwritten_before(loss: ast.AST, frame: Frame, *, seen: bool) -> tuple[int, int] | None:
    """Return the lines that assign ``y`` before ``loss(out, y)``, if they assign data and then ``out.argmax()``.

    Nothing may read the data. If labels equal to the predictions were seen, other code may compare both, such as
    ``accuracy(out, y)``, and return the predictions.
    """
    scope = scope_at(frame)
    if scope is None or not isinstance(loss, ast.Call) or len(loss.args) < 2:
        return None
    output, labels = ast.unparse(loss.args[0]), ast.unparse(loss.args[1])
    uses = [node for node in own_nodes(scope.node) if isinstance(node, ast.Name) and node.id == labels]
    uses = [node for node in uses if node.lineno < frame.line]
    stored = sorted({node.lineno for node in uses if isinstance(node.ctx, ast.Store)})
    read = {node.lineno for node in uses if isinstance(node.ctx, ast.Load)}
    values = [each.value for each in definitions(scope).get(labels, ()) if [each.value.lineno] == stored[-1:]]
    if len(stored) < 2 or not values:
        return None
    *_, before, last = stored
    if seen:
        found = definitions(scope).items()
        known = {
            output,
            *(key for key, several in found if any(output in names_read(d.value) for d in several)),
        }
        read = {line for line in read if before < line <= last}
        near = [statement_at(frame._replace(line=line)) for line in (*read, last)]
        own = all(node is not None and names_read(node) & (known - {labels}) for node in near)
        return (before, last) if own else None
    return (before, last) if not read and _is_argmax(values[0], output) else None


def _is_argmax(value: ast.expr, output: str) -> bool:
    """Return whether a value is ``output.argmax()`` or ``torch.argmax(output)``."""
    if not isinstance(value, ast.Call) or called(value) != "argmax":
        return False
    operands = value.args[:1]
    if isinstance(value.func, ast.Attribute):
        operands.append(value.func.value)
    return output in map(ast.unparse, operands)


def _parts(run: Run, terms: Container[tuple[str, int]]) -> Iterator[Finding]:
    """Report ratios, such as PPO's, and distances inside a term, if both sides are equal and have a gradient."""
    for each in combinations(run, ["itself", "own copy"]):
        read = sum(bool(event.uses) for event in run.calls_at(each.first.backward))
        # Two networks may be equal before the first step.
        between = run.events[each.numbers[0] : each.numbers[-1]]
        changed = any(isinstance(event, Stepped) and event.moved & each.ids for event in between)
        if innermost(each.site)[:2] in terms or not changed or len(each.numbers) < max(_READ, read):
            continue
        if each.how == "own copy":
            yield from _old_unread(run, each)
        else:
            yield RULE.finding(
                each.site,
                "This line compares a value with itself: a difference is always 0, and a ratio is always 1.",
                why="The gradients of both sides cancel, so the term trains nothing.",
                advice="Compare with a different value. PPO stores the log-probability when it draws the sample.",
                **each.measured,
            )


def _old_unread(run: Run, ratio: Combination) -> Iterator[Finding]:
    """Report a clipped ratio that is always 1, if the script stores log-probabilities that nothing reads."""
    stored: dict[str, None] = {}
    read: set[str] = set()
    nodes = list(nodes_of(run.files))
    filled = {node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr in _FILLS}
    filled |= {node.value for node in nodes if isinstance(node, ast.Subscript) and not _is_load(node)}
    for node in nodes:
        key = getattr(getattr(node, "slice", None), "value", None)
        name = f".{key}" if isinstance(key, str) else node.arg if isinstance(node, ast.arg) else key_of(node)
        if not _LOG_PROB.search(name) or (isinstance(node, ast.Subscript) and not isinstance(key, str)):
            continue
        if node in filled or (not _is_load(node) and (isinstance(key, str) or "old" in name)):
            stored[name] = None
        elif _is_load(node):
            read.add(name)
    for name in [name for name in stored if name not in read and f".{name}" not in read][:1]:
        yield RULE.finding(
            ratio.site,
            "This ratio is always 1, so it is never clipped: it compares a log-probability with a copy of itself. "
            f"Nothing reads `{name.lstrip('.')}`, which the script stores.",
            why="The samples come from an older policy, and nothing corrects or limits how far the policy moves "
            "away from it.",
            advice="Subtract the log-probability that was stored when the sample was drawn.",
            severity="warning",
            **ratio.measured,
        )


def _is_load(node: ast.AST) -> bool:
    return isinstance(getattr(node, "ctx", None), ast.Load)


RULE = Rule("GG408", "compared-with-itself", "error", __doc__ or "", _judge)
