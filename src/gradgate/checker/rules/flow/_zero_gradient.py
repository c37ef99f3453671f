"""A parameter's gradient is exactly zero in every step.

## What it does
Looks for parameters of an optimizer whose gradient was all zero in every check. Names the operation that made the
gradient zero in the backward pass: a ReLU below zero, ``round``, a clamp outside its range, a saturated ``tanh``, a
softmax over one value, or a matrix of zeros. If float16 rounded a loss's gradients to zero and no ``GradScaler``
scales the loss, names the backward call. Also reports a term of the loss whose two sides are equal in every
backward call, and a value that one line adds and subtracts.

## Why is this bad?
The parameter is in the graph and in the optimizer, but the loss doesn't train it. No error is raised.

## Example
    scores = F.relu(F.log_softmax(logits, dim=1))        # log-probabilities are negative

## Use instead
    scores = F.log_softmax(logits, dim=1)

## Known limits
A gradient is judged after three checks, which gives factors that start at zero (LoRA, ReZero) time to change.
Experts and other layers of a list are not reported if some of them get a gradient. A factor of zero and a clamp may
be intended, so both are notes. Equal sides are reported from the fifth backward call on. Labels that the model's
own predictions overwrite are not found, nor a ratio to a detached copy.

## Sources
docs/checking.md.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._grouping import grouped
from gradgate.checker.analysis._queries import combinations
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import flow_gradients as texts
from gradgate.events import Backward, Combined, Frame, Ids, Parameter, ScalerUsed, Site

_LOOKS = 3
_LEAST = 5  # backward calls with equal sides
_HALF = "float16"

# By the autograd node that returned zeros: what it is, and what to do.
_CURES = {
    "Round Floor Ceil Trunc Sign": (
        "rounding",
        "Remove the rounding before the loss, or pass the gradient through it: x + (torch.round(x) - "
        "x).detach().",
    ),
    "Softmax LogSoftmax": (
        "a softmax",
        "A softmax over one value is always 1: use a sigmoid for one output, or give the last layer one "
        "output for each class. Otherwise, make the differences between its inputs smaller.",
    ),
    "Relu": (
        "a ReLU",
        "No input of the ReLU is above zero: remove the ReLU, or initialize its inputs above zero.",
    ),
    "Clamp ClampMin ClampMax Hardtanh Maximum Minimum": (
        "a clamp",
        "Initialize the values inside the limits of the clamp.",
    ),
    "Tanh Sigmoid": (
        "a saturated function",
        "Scale the inputs down: all values are at the limit of this function.",
    ),
    "Mul Mm Addmm Bmm Mv Dot": (
        "a product with zeros",
        "Initialize one of the factors with nonzero values, don't freeze it, and divide with / where // "
        "rounds it to 0.",
    ),
    _HALF: (
        "float16, which rounds small gradients to zero,",
        "Scale the loss with a torch.amp.GradScaler: scaler.scale(loss).backward(), scaler.step(optimizer), "
        "scaler.update(). Or use torch.bfloat16 instead of torch.float16.",
    ),
}
_UNKNOWN = ("an operation", "Choose initial values where the operation has a derivative.")
_PERHAPS_MEANT = ("Mul", "Clamp", "ClampMin", "ClampMax", "Hardtanh", "Maximum", "Minimum")


def _judge(run: Run) -> Iterator[Finding]:
    yield from _equal_sides(run)
    groups = grouped(
        (parameter.zeroed[0], parameter)
        for parameter in run.parameters.values()
        if parameter.id in run.owned and parameter.zeroed and _LOOKS <= parameter.looks == parameter.zeros
        if not _has_live_sibling(run, parameter)
    )
    half = [event.backward for event in run.of(Combined) if event.how == "float16"]
    scaled = any(event.op == "scale" for event in run.of(ScalerUsed))
    # A matrix of zeros is the other cause of zero gradients behind a layer.
    zeros = [
        each for each in run.parameters.values() if each.began == 0 and len(each.shape) > 1 and each.made
    ]
    for frame, several in groups.items():
        kind = several[0].zeroed_by.partition("Backward")[0]
        matrix = kind in ("Mm", "Addmm", "Bmm", "Mul")
        small = bool(half) and not scaled and not zeros and matrix
        made = [parameter.made[0] for parameter in zeros if parameter in several]
        operation, cure = next((cure for nodes, cure in _CURES.items() if kind in nodes.split()), _UNKNOWN)
        if small:
            operation, cure = _CURES[_HALF]
        where: Site | Frame = half[0] if small else made[0] if matrix and made else frame
        note = run.ended == "stopped" or (kind in _PERHAPS_MEANT and not small and not made)
        steps, ids = min(parameter.looks for parameter in several), [parameter.id for parameter in several]
        yield RULE.say(
            where,
            texts.ALWAYS_ZERO,
            severity="info" if note else None,
            count=steps,
            about=ids,
            parameters=run.names(ids),
            steps=steps,
            operation=operation,
            line=frame.line,
            cure=cure,
        )


def _has_live_sibling(run: Run, parameter: Parameter) -> bool:
    """Return whether another layer of the same list gets a gradient, such as an expert that is used."""
    kind = _without_numbers(parameter.name)
    return kind != parameter.name and any(
        other.zeros < other.looks and other.shape == parameter.shape and _without_numbers(other.name) == kind
        for other in run.parameters.values()
    )


def _without_numbers(name: str) -> str:
    return ".".join("#" if part.isdigit() else part for part in name.split("."))


def _equal_sides(run: Run) -> Iterator[Finding]:
    """Report terms whose sides are equal in every backward call, and values that a line adds and subtracts."""
    equal: dict[tuple[Site, int], list[bool]] = defaultdict(list)  # one line may make several terms
    reached: dict[Site, Ids] = defaultdict(frozenset)
    for event in run.of(Backward):
        for place, term in enumerate(event.terms if event.reached & run.owned and not event.create else ()):
            equal[term.site, place].append(term.equal)
            reached[term.site] |= event.reached
    terms = Counter(site for site, _ in equal)
    idle = Counter(site for (site, _), calls in equal.items() if len(calls) >= _LEAST and all(calls))
    # A loop over all pairs also compares each value with itself.
    found = {
        site: (len(calls), reached[site])
        for (site, _), calls in equal.items()
        if site and 2 * idle[site] > terms[site] and len(calls) >= _LEAST and all(calls)
    }
    for each in combinations(run, ["cancelled", "itself"]):
        if each.how == "cancelled" or len(each.numbers) >= _LOOKS:
            found.setdefault(each.site, (each.times, each.ids))
    for site, (times, ids) in found.items():
        yield RULE.say(site, texts.EQUAL_SIDES, count=times, about=ids, times=times)


RULE = Rule("GG403", "zero-gradient", "error", __doc__ or "", _judge)
