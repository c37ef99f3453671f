"""The input of a loss is of the wrong kind: probabilities, log-probabilities or logits.

## What it does
Reads the input of a loss from the first graphs of each backward call.

- ``nll_loss``, ``ctc_loss`` and ``kl_div`` expect log-probabilities, whose exponentials add up to 1 over the
  classes. Reports other inputs that are the output of a softmax, of a linear or convolutional layer, or of a
  ``log_softmax`` over another dimension.
- ``cross_entropy``, ``log_softmax``, ``Categorical(logits=...)`` and ``binary_cross_entropy_with_logits`` expect
  logits. Reports the output of a softmax or sigmoid, which is then applied twice.

## Why is this bad?
The loss runs and its value falls, but the gradient is not the gradient of a likelihood. With probabilities, the
gradient vanishes where the model is most wrong. A second softmax sees only values between 0 and 1, so the loss
can't get close to 0: with 10 classes it stays above 1.46. With scores instead of log-probabilities, the loss has no
lower bound.

## Example
    probabilities = F.softmax(model(x), dim=1)
    loss = F.cross_entropy(probabilities, y)

## Use instead
    loss = F.cross_entropy(model(x), y)

or ``F.nll_loss(F.log_softmax(model(x), dim=1), y)``, which is the same loss.

## Known limits
Targets that are shifted twice or not at all are not reported. Log-likelihoods that a model computes in another way
need not be normalized and are not reported. Neither are probabilities that are scaled, shifted or clamped before
the loss, or a ``log_softmax`` before ``cross_entropy``, which changes nothing. The input of ``kl_div`` is checked
only if its target has no graph and ``log_target`` is off. An edit removes a softmax only if the call of the loss
contains it, because other code may use the probabilities.

## Sources
docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html, torch.nn.CrossEntropyLoss.html
"""

from __future__ import annotations

from collections.abc import Iterator

from gradgate.checker.analysis._queries import combinations
from gradgate.checker.analysis._run import Run
from gradgate.checker.rules._rule import Finding, Rule
from gradgate.checker.rules.texts import flow_gradients as texts

_TEXTS = {
    "probabilities": texts.PROBABILITIES,
    "scores": texts.SCORES,
    "other axis": texts.OTHER_AXIS,
    "normalized twice": texts.NORMALIZED_TWICE,
}


def _judge(run: Run) -> Iterator[Finding]:
    for each in combinations(run, _TEXTS):
        twice = each.how == "normalized twice"
        yield RULE.say(
            each.site,
            _TEXTS[each.how],
            severity=None if twice else "warning",
            count=each.times,
            about=each.ids,
            parameters=len(each.ids),
        )


RULE = Rule("GG409", "loss-input", "error", __doc__ or "", _judge)
