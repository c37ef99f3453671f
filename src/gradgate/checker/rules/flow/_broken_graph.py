"""A part of the loss is detached from the parameters that it was computed from.

## What it does
Looks for trainable parameters that no gradient reaches because their module ran without a graph, another module ran
without a graph on their output (``no_grad`` in the middle), or an operation detached the value (``detach``,
``.data``, ``.item()``, numpy, ``argmax``, a new leaf tensor, a reentrant checkpoint). Also looks for:

- summands of a loss that were computed from trained parameters but have no gradient, such as a gradient penalty
  or a derivative in a residual without ``create_graph=True``;
- parameters that are used only in an inner gradient, which is computed without a graph (a learned loss);
- inner steps (MAML) whose gradients name no ``create_graph``, unless the script mentions ``first-order``,
  ``FOMAML`` or ``Reptile``;
- losses that reach only parameters that no step changes, such as a generator's adversarial loss of
  ``discriminator(fake.detach())``;
- a recurrent state that is detached at each step, although the loss depends on the last step only;
- samples drawn by ``sample()`` although ``rsample()`` would keep the graph;
- codes of a codebook that a decoder uses without a straight-through estimator, although the distance to the codes
  trains the encoder (a VQ-VAE).

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
If the same parameters get a gradient along another path, a cut is found in two cases: it makes a whole summand of
the loss constant, or the summand then reaches only parameters whose gradients no step uses. For example, a
``sample()`` whose ``log_prob`` is in the loss is found in SAC, where actor and critics have separate optimizers,
even if the critics are frozen. It is not found if one optimizer holds both, because the loss may be a
score-function estimator. Any other constant summand inside a mean is not found, nor is a summand that another
module's forward pass computes under ``no_grad`` (a perceptual loss).

The parts of a summand are read from the source. This misses a summand that names a trained module outside the
detached expression. A comparison (a hard threshold) that cuts the graph is not found. A detached feature is not
found if its term trains another layer of the same optimizer, because that layer may be a probe. Nor is a difference
whose derivative is zero, such as ``x`` minus its straight-through copy. If the source can't be read, only
``detach``, ``.data`` and ``no_grad`` are found. Factors are not checked: targets, baselines and loss weights may be
detached.

## Sources
docs.pytorch.org/docs/stable/notes/autograd.html, "Locally disabling gradient computation".
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from itertools import islice

from gradgate.checker.analysis._gradient_modes import no_grad_cuts, readable, reentrant_checkpoint
from gradgate.checker.analysis._parameter_usage import replaced, temporary, unowned, unreached
from gradgate.checker.analysis._queries import combinations
from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._scopes import makes_leaf
from gradgate.checker.analysis._slices import slice_at
from gradgate.checker.analysis._source import in_condition, text_of
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._cut_advice import CHECKPOINT, LEAF, NO_GRAPH, OFF, copied_at, in_its_graph
from gradgate.checker.rules.flow._cut_samples import cut_samples
from gradgate.checker.rules.flow._cut_terms import (
    TENSORS,
    WHY,
    constant_terms,
    idle_terms,
)
from gradgate.checker.rules.flow._derivatives import derivatives_without_graph, inner_steps_without_graph
from gradgate.checker.rules.flow._detached_steps import detached_steps
from gradgate.checker.rules.flow._term_left_out import behind_shown_sums
from gradgate.events import Backward, Cut, Differentiated, Frame, Ids, Site, Stepped


def _judge(run: Run) -> Iterator[Finding]:
    missing = unreached(run) - behind_shown_sums(run)
    for swap in replaced(run):
        missing -= swap.old
    summands, ends = [], set[tuple[str, int]]()
    for finding, cuts in constant_terms(run, RULE, missing):
        summands.append(finding)
        ends.update(frame[:2] for frame in cuts)
    behind = _behind(run, ends)
    without = cut_off(run, missing)
    for frame, (ids, how) in without.items():
        if ids <= behind and frame[:2] not in ends:
            continue  # their gradients are missing because of a constant summand: other cuts may be intended
        optimizer = min(run.optimizers_of(ids))
        if copy := copied_at(frame):
            how, ids = copy, frozenset(number for number in missing if optimizer in run.owners[number])
        advice, fix = in_its_graph(run, frame, ids, how, optimizer)
        if how == LEAF:
            losses = [slice_at(site, run.files) for site in _losses(run, ids)]
            for off, _ in islice(no_grad_cuts(run, ids, losses), 1):
                advice, fix = f"{advice} Line {off.line} also turns gradients off: remove this, too.", ()
        steps = run.stepping[optimizer]
        # An option may choose a line under a condition, but not if the loss is computed under this condition, too.
        option = in_condition(frame, [each for event in _before_steps_of(run, ids) for each in event.site])
        yield RULE.finding(
            frame,
            f"{how} cuts {run.names(ids)} off from the loss: no gradient reached "
            f"{'it' if len(ids) == 1 else 'them'} in {steps} steps.",
            why=WHY,
            advice=advice,
            fix=fix,
            severity="info" if option and how != CHECKPOINT else None,
            count=steps,
            evidence={"parameters": len(ids), "steps": steps},
        )
    yield from (each for each in summands if (each.file, each.line) not in {frame[:2] for frame in without})
    lines = {frame[:2] for frame in without} | {(each.file, each.line) for each in summands} | ends
    for each in (*derivatives_without_graph(run, RULE), *inner_steps_without_graph(run, RULE)):
        if (each.file, each.line) not in lines:
            yield each
    yield from detached_steps(run, RULE)
    idle = list(idle_terms(run, RULE))
    yield from idle
    chosen = [event.parameters for event in run.of(Cut) if event.op in ("argmin", "argmax")]
    for codes in combinations(run, ["codes"]):
        if not any(codes.ids <= ids for ids in chosen):
            continue  # labels may choose the codes
        yield RULE.finding(
            codes.site,
            f"The rest of the loss uses these codes, but only their distance trains {run.names(codes.ids)}: other "
            "gradients don't flow through the choice of a code.",
            why="The encoder is only pulled towards the codes. Nothing tells it what the decoder needs.",
            advice="Give the decoder z + (codes - z).detach(), where z is the encoder's output: it has the codes' "
            "values, and passes the gradient straight through to z.",
            severity="warning",
            **codes.measured,
        )
    losses = [slice_at(site, run.files) for site in _losses(run, missing)]
    in_losses = [node for each in losses for _, node in each.nodes]
    reported = {(each.file, each.line) for each in idle}
    yield from (
        each for each in cut_samples(run, RULE, missing, in_losses) if (each.file, each.line) not in reported
    )


def _behind(run: Run, lines: Collection[tuple[str, int]]) -> Ids:
    """Return the parameters from which the values cut at these lines were computed."""
    cuts = [event for event in run.of(Cut) if event.site and event.site[0][:2] in lines]
    return frozenset[int]().union(*(event.parameters for event in cuts))


def cut_off(run: Run, missing: Ids) -> dict[Frame, tuple[Ids, str]]:
    """Return the lines that detach ``missing`` parameters, each with its parameters and the detaching operation."""
    if not missing:
        return {}
    inner = _without_graph(run, missing)
    if inner:
        return inner
    leaf = _new_leaf(run, missing)
    if leaf is not None:
        return {leaf: (missing, LEAF)}
    losses = _losses(run, missing)
    slices = [slice_at(site, run.files) for site in losses]
    within = {site[0][::2] for site in losses if site}
    off = no_grad_cuts(run, missing, slices)
    cuts = [(line, ids, CHECKPOINT if reentrant_checkpoint(line) else OFF) for line, ids in off]
    apart = set[Frame]()
    for event in run.of(Cut):
        frame, ids = event.site[0], event.parameters & missing
        op = "sample" if event.op == "drawn" else event.op
        if not ids or op == "no_grad" or (copied_at(frame) and not _on_a_copy(run, ids)):
            continue
        if any(each.holds(frame, op) for each in slices) or _goes_on(run, event):
            cuts.append((frame, ids, op if op in ("data", "Parameter") else f".{op}()"))
            if within.isdisjoint(each[::2] for each in event.site):
                apart.add(frame)
    found: dict[Frame, tuple[Ids, str]] = {}
    # A quantizer's index has no gradient on purpose if another line detaches the value that it chooses. A policy's
    # action has none if the function that computes the loss detaches the policy's output.
    cuts.sort(key=lambda cut: (cut[2] in (".argmin()", ".argmax()"), cut[0] in apart))
    for frame, ids, how in cuts:
        known, first_how = found.get(frame, (frozenset(), how))
        found[frame] = (known | ids, first_how)
    # Parameters that are detached twice are reported at the first line.
    reported: set[int] = set()
    for frame, (ids, _) in tuple(found.items()):
        if ids <= reported:
            del found[frame]
        reported |= ids
    return found


def _on_a_copy(run: Run, ids: Ids) -> bool:
    """Return whether parameters outside of these parameters' optimizers get gradients and have the same shapes."""
    optimizers = run.optimizers_of(ids)
    others = (number for number in run.reached if optimizers.isdisjoint(run.owners.get(number, ())))
    shapes = {run.parameters[number].shape for number in others if number in run.parameters}
    return all(run.parameters[number].shape in shapes for number in ids)


def _without_graph(run: Run, missing: Ids) -> dict[Frame, tuple[Ids, str]]:
    """Return the calls of ``autograd.grad`` whose graph contained missing parameters, if a loss uses the result."""
    events = [event for event in run.of(Differentiated) if event.site and not event.create]
    with_graph = frozenset[int]().union(*(event.reached for event in run.of(Differentiated) if event.create))
    slices = [slice_at(site, run.files) for site in _losses(run, missing)]
    found: dict[Frame, tuple[Ids, str]] = {}
    for event in events:
        ids = (event.reached & missing) - event.asked - with_graph
        if ids and any(each.holds(event.site[0]) for each in slices):
            found[event.site[0]] = found.get(event.site[0], (frozenset(), ""))[0] | ids, NO_GRAPH
    return found


def _losses(run: Run, missing: Ids) -> set[Site]:
    """Return the lines that back-propagate losses, or, in a trainer, the lines that compute their terms.

    If an optimizer of the missing parameters steps after some of the lines, only those lines are returned: a
    discriminator's loss should be detached from the generator.
    """
    sites = set()
    for event in _before_steps_of(run, missing) or run.of(Backward):
        text = text_of(event.site[0]) if event.site else "a trainer's"  # "": the source can't be read
        by_trainer = bool(text) and "backward" not in text
        sites |= {event.site, *(term.site for term in event.terms if by_trainer)}
    return sites


def _before_steps_of(run: Run, missing: Ids) -> list[Backward]:
    """Return the backward calls that are followed by a step of an optimizer that holds these parameters."""
    wanted = run.optimizers_of(missing)
    found: list[Backward] = []
    waiting: list[Backward] = []
    stepped = False
    for event in run.of(Backward, Stepped):
        if isinstance(event, Backward):
            waiting = [event] if stepped else [*waiting, event]
            stepped = False
        else:
            stepped = True
            if event.optimizer in wanted:
                found += waiting
                waiting = []
    return found


def _goes_on(run: Run, cut: Cut) -> bool:
    """Return whether the source can't be read, but the program seems to compute with a cut value.

    A value that is only displayed is converted to a number, not to a tensor.
    """
    unread = not readable(cut.site) or not all(readable(event.site) for event in run.of(Backward))
    return unread and not cut.scalar and cut.op in TENSORS


def _new_leaf(run: Run, missing: Ids) -> Frame | None:
    """Return the line that makes a leaf in each forward pass, where the gradient ends."""
    wrapped = temporary(run, [run.parameters[number] for number in unowned(run)])
    if wrapped:
        return run.parameters[min(wrapped)].made[0]
    made = min(event for (_, number), event in run.held_since.items() if number in missing)
    trained = {event.site for event in run.of(Backward) if event.reached & run.owned}
    later = [event for event in run.events[made:] if isinstance(event, Backward) and event.others]
    for site in dict.fromkeys(event.site for event in later if event.site not in trained):
        for file, node in slice_at(site, run.files).nodes:
            if isinstance(node, ast.Call) and makes_leaf(node):
                return Frame(file, node.lineno, "")
    return None


RULE = Rule("GG402", "broken-graph", "error", __doc__ or "", _judge)
