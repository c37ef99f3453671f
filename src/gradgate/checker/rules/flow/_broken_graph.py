"""A part of the loss is detached from the parameters that it was computed from.

## What it does
Follows the values of the first steps, also where they leave autograd's graph (``detach``, ``.data``, ``.item()``,
``no_grad``, ``sample()``, ``argmax``, a new leaf, ``autograd.grad`` without ``create_graph``), and reports

- a term of the loss that was computed from trained parameters, but passes a gradient to none of them;
- parameters without any gradient, if the value of a loss depends on them;
- a distance between outputs of networks, neither of which has a graph;
- a drawn value that another trained network gets, although no gradient tells its maker about the outcome;
- a derivative without a graph that a term compares with values that have one.

## Why is this bad?
The loss includes the term, but the gradient doesn't. The term becomes smaller only by chance.

## Example
    loss = recon + beta * kl.item()                      # a constant
    slope = torch.autograd.grad(score.sum(), x)[0]       # has no graph
    loss = loss + 10 * (slope.norm(2, 1) - 1).square().mean()

## Use instead
    loss = recon + beta * kl
    slope = torch.autograd.grad(score.sum(), x, create_graph=True)[0]

## Known limits
Only the first 12 steps are followed, two micro-batches of each window, in the main thread, and not if the script
uses ``torch.compile``. Values are not followed through numpy and through the arithmetic of Python numbers, except
for a multiple of a number (``beta * kl.item()``). A detached factor (a weight, a baseline) is not reported, nor is
a detached feature whose term trains other parameters of the same optimizer: the layer may be a probe.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Locally disabling gradient computation".
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._values import CHOICES, PARTS, Constant, flow
from gradgate.checker.rules._rule import Finding, FixAt, Rule, Text
from gradgate.checker.rules.flow._graph_fixes import resampled, with_graph, without_cut
from gradgate.checker.rules.texts import flow as texts

_DRAWS = ("normal", "expand")
_ADVICE = {
    "no_grad": (
        "torch.no_grad() cuts its graph",
        "Compute it outside of no_grad(): targets may stay inside.",
    ),
    "part": ("it is detached here", "Use the value itself instead of a detached copy."),
    "number": (
        "its graph ends where a number is read",
        "Use the tensor itself instead of the numbers in it.",
    ),
    "draw": ("a sample has no graph", "Draw it with rsample(), which keeps the graph."),
    "choice": ("this operation has no derivative", "Use a differentiable one: probabilities as weights."),
    "grad": (
        "its derivative has no graph",
        "Pass create_graph=True, so that the gradient can be differentiated.",
    ),
    "leaf": ("a new leaf begins a new graph here", "Use the value itself: a new leaf has no history."),
}


def _judge(run: Run) -> Iterator[Finding]:
    shadow, explained = flow(run), 0
    missing = shadow.missing()
    for text, several in (
        (texts.CUT_TERM, shadow.constants()),
        (texts.CUT_OFF, shadow.behind_cuts(missing)),
        (texts.WITHOUT_GRAPH, shadow.constant_distances()),
        (texts.CUT_TERM, shadow.drawn_inputs()),
        (texts.FIRST_ORDER, shadow.first_order()),
    ):
        for part in several:
            if part.site and (not explained or part.lost & ~explained):
                yield _finding(run, text, part)
            explained |= part.lost


def _finding(run: Run, text: Text, part: Constant) -> Finding:
    shadow = flow(run)
    kind = _kind(run, part)
    how, advice = _ADVICE[kind]
    ids = shadow.ids(part.lost)
    fixes: dict[str, FixAt] = {
        "part": partial(without_cut, ops=("detach", "data")),
        "number": partial(without_cut, ops=("item",)),
        "draw": resampled,
        "grad": with_graph,
    }
    return RULE.say(
        part.site,
        text,
        fix=fixes.get(kind, ()) if kind != "part" or shadow.has_one_use(part.cut) else (),
        count=len(part.losses) if len(part.losses) > 1 else run.log.steps,
        about=ids,
        names=run.names(ids),
        loss=part.losses[0].event.site[0].line if part.losses and part.losses[0].event.site else 0,
        times=len(part.losses),
        steps=run.log.steps,
        how=how,
        advice=advice,
    )


def _kind(run: Run, part: Constant) -> str:
    node = run.log.values.nodes[part.cut]
    if node.off and node.op not in PARTS:
        return "no_grad"
    if node.op in PARTS:
        return "part"
    if node.op in ("item", "__float__") or not part.losses:
        return "number"
    if node.op in _DRAWS:
        return "draw"
    if node.op in ("grad", "leaf"):
        return node.op
    return "choice" if node.whole or node.op in CHOICES else "leaf"


RULE = Rule("GG402", "broken-graph", "error", __doc__ or "", _judge)
