"""Finds a sum over the samples of a batch that is added to a mean over the same samples."""

from __future__ import annotations

from collections.abc import Iterator

from gradgate.checker.rules._rule import Finding, Rule
from gradgate.events import Backward, Term

_LEAST_WEIGHT = 0.1  # a smaller weight was chosen for the sum


def mixed_reductions(events: list[Backward], rule: Rule) -> Iterator[Finding]:
    """Report a sum over samples and features that is added, undivided, to a mean over the same samples.

    Sums over one dimension are left out: they may be sums over an episode, or over losses per sample. A penalty of
    parameters shares no operations with the other term.
    """
    found = [pair for event in events if (pair := _mixed(event.terms)) is not None]
    if len(found) < 2 or len(found) * 2 < len(events):
        return
    total, mean = found[0]
    if not any(term.shared and term.site == total.site for term, _ in found):
        return
    batch = mean.sizes[0]
    yield rule.finding(
        total.site,
        f"This term is a sum over a batch of {batch} samples, shape {list(total.sizes)}, but the loss adds it to a "
        f"mean over the batch, shape {list(mean.sizes)}.",
        why=f"The sum weighs {batch} times as much as its mean over the samples, and more in a larger batch.",
        advice="Average this term over the samples, too: .flatten(1).sum(1).mean(), or divide the sum by the batch "
        "size. In a VAE, also sum the reconstruction over its features: F.mse_loss(output, x, reduction='sum') / "
        "len(x).",
        severity="warning",
        count=len(found),
        evidence={"summed": list(total.sizes), "averaged": list(mean.sizes)},
    )


def _mixed(terms: tuple[Term, ...]) -> tuple[Term, Term] | None:
    sums = [term for term in terms if term.kind == "sum" and len(term.sizes) > 1 and _is_undivided(term)]
    means = [term for term in terms if term.kind == "mean" and term.sizes and 0 < abs(term.weight) <= 1]
    for total in sums:
        for mean in means:
            return total, mean
    return None


def _is_undivided(term: Term) -> bool:
    whole = all(op == "mul" or abs(number) <= 1 for op, number, _ in term.factors)
    return whole and _LEAST_WEIGHT <= abs(term.weight) <= 1
