"""A target or a weight in the loss has a gradient although the loss should treat it as a constant.

## What it does
Follows the values of the first steps, and reports a value with a gradient that

- is the target of ``kl_div`` or a cross entropy, and depends on parameters that the prediction doesn't depend on;
- is the target of an error, if its network is trained by no other term of the loss, and is in evaluation mode, was
  trained by an earlier optimizer, or is also moved by other code (an average or a copy);
- is data plus a multiple of the network's own output (a bootstrapped target), and is compared with its output;
- multiplies a log-probability, if another term compares its network with data (the value in an advantage);
- is compared with the same value by two terms (the codes of a VQ-VAE), of which only one detaches it;
- is an encoder's output, if the loss only compares it with a predictor's output for another input (SimSiam);
- was detached by a call whose result is dropped.

## Why is this bad?
The loss then also trains the target towards the prediction, or trains the critic to make the policy's loss small.
Training gets slower or diverges, and no error is raised.

## Example
    target = reward + gamma * q(next_state).max(1).values
    policy_loss = -(log_prob * (returns - value)).mean()

## Use instead
    with torch.no_grad():
        target = reward + gamma * q(next_state).max(1).values
    policy_loss = -(log_prob * (returns - value).detach()).mean()

## Known limits
Two views that are each compared with the other, and a network that is compared with itself on other data, may have
a gradient on purpose. Averages of weights that keep a graph are not followed, nor is what begins after the first 12
steps. A loss is not judged if its gradients are differentiated again.

## Sources
Sutton and Barto, "Reinforcement Learning: An Introduction", section 11.5; Baird, "Residual algorithms", 1995; Chen
and He, "Exploring Simple Siamese Representation Learning", 2021, section 4.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from gradgate.checker.analysis._run import Run
from gradgate.checker.analysis._targets import Target, Targets
from gradgate.checker.analysis._values import flow
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.flow._graph_fixes import kept
from gradgate.checker.rules.texts import flow_reach as texts
from gradgate.events import Differentiated, Site

_TIMES = 2  # once may be a warm-up


def _judge(run: Run) -> Iterator[Finding]:
    shadow = flow(run)
    found: dict[tuple[Site, str], list[Target]] = defaultdict(list)
    if not any(event.create for event in run.of(Differentiated)):
        for loss in shadow.losses:
            for target in Targets(run, loss).find():
                found[shadow.nodes[target.number].site, target.how].append(target)
    for cut, lost in shadow.dropped():
        found[shadow.nodes[cut].site, "dropped"].append(Target("dropped", cut, lost))
    for (site, how), several in found.items():
        if site and len(several) >= _TIMES:
            ids = shadow.ids(several[0].lost)
            yield RULE.say(
                site,
                texts.ATTACHED[how],
                fix=kept if how == "dropped" else (),
                count=len(several),
                about=ids,
                names=run.names(ids),
            )


RULE = Rule("GG406", "attached-target", "warning", __doc__ or "", _judge)
