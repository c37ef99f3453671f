"""Gradients are not averaged over the ranks, averaged too often, or divided by the number of ranks twice.

## What it does
In each process of a run with several ranks, follows which backward calls ``DistributedDataParallel`` synchronizes
and which gradients are all-reduced by hand. Reports:

- windows whose last micro-batch DDP doesn't synchronize, and parameters whose gradients nothing averages;
- a mean over the ranks that is taken twice (by DDP, and again in the loss or by hand) or never;
- running sums that are all-reduced at each micro-batch;
- replicas whose parameters don't begin with equal values, become different for good, or step a different number of
  times. The rule compares the values on all ranks before each of the first steps.

Reports, as a note, that DDP synchronizes each micro-batch of a window.

## Why is this bad?
Without an all-reduce, each rank trains its own model on its part of the data, and the saved model has seen
only a fraction of the data. If a running sum is all-reduced again, the early micro-batches count many times. Two
divisions make the step too small by a factor of the number of ranks.

## Example
    (loss / world_size).backward()               # DDP divides by world_size again
    optimizer.step()

## Use instead
    loss.backward()                              # DDP averages the gradients over the ranks
    optimizer.step()

If windows have several micro-batches, put the forward and backward pass of each micro-batch except the last under
``with model.no_sync():``.

## Known limits
FSDP, pipeline parallelism, tensor parallelism and compiled modules are not judged. Without DDP, missing averages
show only as values that differ between the ranks and never become equal again, and only if the ranks communicate or
divide their data by a DistributedSampler. To compare values, the rule takes the sum or norm of some parameters in
the first 60 steps. A sum that is never divided is reported for SGD only, and not in a flat buffer. A loss that is
divided by the items of all ranks and then averaged by DDP is not found. A division by the number of ranks that also
is the number of a window's micro-batches or of the loss's terms is not reported.

## Sources
``torch.nn.parallel.DistributedDataParallel`` in the documentation: "gradients are averaged", and ``no_sync``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import prod

from gradgate.checker.analysis._grouping import grouped, union
from gradgate.checker.analysis._history import StepWindow
from gradgate.checker.analysis._oracle import columns_of, fits, is_one
from gradgate.checker.analysis._queries import shared_line
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.ranks._means import LEAST, averaged, differ, reduced_between, sums_over_ranks
from gradgate.checker.rules.ranks._replicas import ended_apart
from gradgate.checker.rules.texts import ranks as texts
from gradgate.events import Backward, Gap, Ids, Reduced, Site, Term, Wrapped, Written


def _judge(run: Run) -> Iterator[Finding]:
    if run.log.world > 1 and len(run.windows) >= LEAST:
        for judge in (_unsynchronized, _left_out, _never_divided, _divided_twice, _summed_again, _at_each):
            yield from judge(run)


def _judge_ranks(runs: Sequence[Run], rule: Rule) -> Iterator[Finding]:
    found = [*_uneven_steps(runs), *_different_start(runs)]
    yield from found
    if not found and not any(finding.severity != "info" for run in runs for finding in _judge(run)):
        yield from ended_apart(runs, rule)


def _unsynchronized(run: Run) -> Iterator[Finding]:
    """Report windows whose last micro-batch DDP doesn't synchronize, so that its gradients are not averaged."""
    windows = [window for window in run.windows if window.micro and not run.repeats_closure(window)]
    ends = [run.backward(window.micro[-1]) for window in windows]
    found: Counter[tuple[Site, bool]] = Counter()
    used: dict[Site, Site] = {}  # only calls that were watched closely show where parameters are used
    for last in ends:
        if last.synced is False and not last.managed:
            found[last.site, last.around] += 1
            used |= (
                {last.site: tuple(frame for _, site in reversed(last.uses) for frame in site)}
                if last.uses
                else {}
            )
    for (site, around), count in found.items() if found and not _communicates(run) else ():
        if count >= 2:
            yield RULE.say(
                (around and shared_line(used.get(site, ()), site)) or site,
                texts.UNSYNCHRONIZED,
                severity="error",
                count=count,
                alone=count,
                windows=len(run.windows),
                ranks=run.log.world,
                how="the last micro-batch is computed without the DistributedDataParallel wrapper"
                if around
                else "DDP doesn't synchronize the last micro-batch",
                advice="Call the DistributedDataParallel itself, not the module inside it."
                if around
                else "Run the last micro-batch of each window outside of no_sync(), even if the last window of an "
                "epoch is shorter.",
            )


def _communicates(run: Run) -> bool:
    """Return whether, once training has begun, gradients or tensors as large as a parameter are exchanged."""
    sizes = [prod(run.parameters[number].shape) for number in run.reached if number in run.parameters]
    large = max(2, min(sizes, default=2))
    began = next((number for number, _ in run.numbered(Backward)), len(run.events))
    return any(
        number > began and (event.parameters or event.numel > large)
        for number, event in run.numbered(Reduced)
    )


def _left_out(run: Run) -> Iterator[Finding]:
    """Report parameters whose gradients are never averaged although other parameters' gradients are."""
    wrapped = [event for event in run.of(Wrapped) if event.parameters]
    reduced = [event for event in run.of(Reduced) if event.parameters]
    events = wrapped or ([] if run.log.distributed else reduced)
    if not events or any(event.numel > 2 and not event.parameters for event in run.of(Reduced)):
        return
    together = union(event.parameters for event in (*events, *reduced))
    alone: dict[int, set[int]] = defaultdict(set)
    steps: Counter[int] = Counter()
    for window in run.windows:
        managed = any(run.backward(number).managed for number in window.micro)
        apart = window.parameters - together and (wrapped or window.parameters & together)
        if window.micro and not managed and apart:
            alone[window.optimizer] |= window.parameters - together
            steps[window.optimizer] += 1
    for optimizer, count in steps.items():
        if count >= max(LEAST, run.stepping[optimizer] - 1):
            ids = alone[optimizer]
            parameter = run.parameters[min(ids)]
            same = [
                event
                for event in wrapped
                if parameter.root in {run.parameters[n].root for n in event.parameters}
            ]
            own = [frame for frame in parameter.made if frame.function != "__init__"] or list(parameter.made)
            yield RULE.say(
                same[0].site if same else own[0] if wrapped and own else events[-1].site,
                texts.LEFT_OUT,
                count=count,
                about=ids,
                names=run.names(ids),
                parameters=len(ids),
                steps=count,
                advice="Construct DistributedDataParallel when all trained parameters have requires_grad=True: "
                "it never averages the gradient of a parameter that was frozen then."
                if same
                else "Average the gradients of all parameters that the optimizer updates: wrap their module in "
                "DistributedDataParallel as well.",
            )


def _never_divided(run: Run) -> Iterator[Finding]:
    """Report mean losses whose gradients are summed over the ranks by hand and not divided before the step.

    The steps of other optimizers than SGD don't depend on the gradient's scale.
    """
    read = [window for window in run.windows if all(run.backward(number).seen for number in window.micro)]
    summed = ((window.optimizer, _summed_only(run, window)) for window in read)
    for optimizer, sites in grouped((owner, site) for owner, site in summed if site is not None).items():
        most = sum(window.optimizer == optimizer for window in read)
        if len(sites) >= max(LEAST, most - 1) and all(made.kind == "SGD" for made in run.made[optimizer]):
            yield RULE.say(
                sites[-1],
                texts.NEVER_DIVIDED,
                severity="info",
                count=len(sites),
                ranks=run.log.world,
                steps=len(sites),
            )


def _summed_only(run: Run, window: StepWindow) -> Site | None:
    events = [run.backward(number) for number in window.micro]
    parts = (*window.fresh, *window.stale)
    if not events or any(event.synced is not None or event.managed for event in events):
        return None
    if any(part.clips or part.backward < 0 for part in parts):
        return None
    between = run.events[window.micro[-1] : window.step]
    summed = [event for event in between if isinstance(event, Reduced) and event.parameters]
    times = [number for event in summed for number in event.parameters]
    once = len(times) == len(set(times)) and set(times) == window.parameters
    columns = columns_of(run, window, window.micro)
    one_mean = len(columns) == 1 and is_one(columns[0])
    return summed[-1].site if summed and once and one_mean and all(map(sums_over_ranks, summed)) else None


def _divided_twice(run: Run) -> Iterator[Finding]:
    """Report losses and gradients divided by the number of ranks although gradients are averaged over the ranks."""
    found: dict[tuple[Site, str], list[StepWindow]] = grouped(
        (place, window)
        for window in run.windows
        if averaged(run, window)
        for place in {*_in_the_loss(run, window), *_in_the_gradients(run, window)}
    )
    for (site, what), windows in found.items():
        if len(windows) >= 2:
            yield RULE.say(
                site,
                texts.DIVIDED_TWICE,
                severity="error",
                count=len(windows),
                about=windows[0].parameters,
                what=what,
                ranks=run.log.world,
                steps=len(windows),
            )


def _in_the_loss(run: Run, window: StepWindow) -> Iterator[tuple[Site, str]]:
    for number in window.micro:
        terms: Sequence[Term] = run.backward(number).terms
        numbers = [(op, value) for term in terms for op, value, _ in term.factors]
        if ("mul", float(run.log.world)) in numbers or run.log.world in (len(window.micro), len(terms)):
            continue
        for op, divisor, site in (factor for term in terms for factor in term.factors):
            if op == "div" and divisor in (run.log.world, run.log.world * len(window.micro)):
                yield site, "loss"


def _in_the_gradients(run: Run, window: StepWindow) -> Iterator[tuple[Site, str]]:
    events = [run.backward(number) for number in window.micro]
    if events and events[-1].synced and len(events) == 1 and not events[0].managed:
        written = [event for event in run.events[window.micro[0] : window.step] if isinstance(event, Written)]
        for event in written:
            mine = event.target == "gradient" and event.parameters & window.parameters
            if mine and event.factor and abs(event.factor * run.log.world - 1) < 1e-6:
                yield event.site, "gradient"


def _summed_again(run: Run) -> Iterator[Finding]:
    """Report running sums of gradients that are all-reduced again without a division in between."""
    windows: dict[Site, set[int]] = defaultdict(set)
    micro = 0
    for window in run.windows:
        numbers = grouped((part.atom, part.backward) for part in window.fresh if part.backward >= 0)
        for atom, backwards in numbers.items():
            for first, second in pairwise(sorted(backwards)):
                site = _summed_between(run, first, second, atom)
                if site is not None and run.events[first].site == run.events[second].site:
                    windows[site].add(window.step)
                    micro = len(window.micro)
    beside = [frame for event in run.of(Backward) for frame in event.site]
    for site, steps in windows.items():
        yield RULE.say(
            shared_line(site, beside) or site,
            texts.SUMMED_AGAIN,
            severity="error",
            count=len(steps),
            windows=len(steps),
            micro_batches=micro,
            again=micro - 1,
            ranks=run.log.world,
        )


def _summed_between(run: Run, first: int, second: int, atom: Ids) -> Site | None:
    reduced, factor = reduced_between(run, first, second, atom)
    summed = bool(reduced) and all(map(sums_over_ranks, reduced))
    return reduced[-1].site if summed and abs(factor * run.log.world - 1) > 1e-3 else None


def _at_each(run: Run) -> Iterator[Finding]:
    for fit in fits(run):
        windows = [micro for _, micro in fit.windows if len(micro) > 1]
        if len(windows) >= 2 and all(run.backward(number).synced for micro in windows for number in micro):
            yield RULE.say(
                fit.site,
                texts.SYNCHRONIZED_AT_EACH,
                severity="info",
                count=len(windows),
                windows=len(windows),
                micro_batches=len(windows[0]),
            )


# Comparisons of the ranks


def _uneven_steps(runs: Sequence[Run]) -> Iterator[Finding]:
    """Report steps that only some ranks make, after backward calls that all ranks made together."""
    calls = {sum(bool(event.synced) for event in run.of(Backward)) for run in runs}
    finished = all(run.ended == "finished" and not run.of(Gap) for run in runs)
    for optimizer in sorted(set.intersection(*(set(run.made) for run in runs))):
        steps = [run.stepping[optimizer] for run in runs]
        longest = max(runs, key=lambda run: run.stepping[optimizer])
        if len(set(steps)) > 1 and len(calls) == 1 and max(steps) >= LEAST <= min(calls) and finished:
            yield RULE.say(
                longest.stepped(longest.steps(optimizer)[0]).site,
                texts.UNEVEN_STEPS,
                severity="error",
                count=max(steps) - min(steps),
                optimizer=runs[0].optimizer(optimizer),
                least=min(steps),
                most=max(steps),
                calls=min(calls),
            )


def _different_start(runs: Sequence[Run]) -> Iterator[Finding]:
    """Report parameters that have averaged gradients but different initial values on the ranks."""
    first = runs[0]
    windows = [window for window in first.windows if averaged(first, window)]
    differing = [
        number for number in sorted(union(window.parameters for window in windows)) if _began(runs, number)
    ]
    if differing and len(windows) >= LEAST:
        made = [event.site for event in first.made[windows[0].optimizer] if not event.added]
        created = [first.parameters[number].made for number in differing]
        yield RULE.say(
            next(filter(None, [*created, *made]), first.backward(windows[0].micro[-1]).site),
            texts.DIFFERENT_START,
            severity="error",
            count=len(windows),
            names=first.names(differing),
            parameters=len(differing),
            ranks=len(runs),
            steps=len(windows),
        )


def _began(runs: Sequence[Run], number: int) -> bool:
    """Return whether a parameter has the same name and shape on all ranks, but different initial values."""
    known = [run.parameters[number] for run in runs if number in run.parameters]
    began = [parameter.began for parameter in known if parameter.began is not None]
    same = len({(parameter.name, parameter.shape) for parameter in known}) == 1
    return same and len(began) == len(runs) and differ(began)


RULE = Rule("GG106", "ddp-sync", "warning", __doc__ or "", _judge, _judge_ranks)
