"""What the rules of gradient flow say."""

from __future__ import annotations

from gradgate.checker.rules._rule import Text

_CONSTANT = "The loss includes the value, but training does not minimize it."

CUT_TERM = Text(
    "A term of the loss at line {loss} was computed from {names}, but {how}: none of {times} backward calls passes "
    "a gradient from this term to them.",
    _CONSTANT,
    "{advice}",
)
CUT_OFF = Text(
    "{names} got no gradient in {steps} steps: {how}.",
    "The parameters keep their initial values, although the loss depends on them.",
    "{advice}",
)
WITHOUT_GRAPH = Text(
    "The loss at line {loss} compares two values that networks computed, but neither has a graph: {how}.",
    _CONSTANT,
    "{advice}",
)
FIRST_ORDER = Text(
    "The loss at line {loss} uses derivatives as constants: they depend on {names}, but keep no graph.",
    "Training ignores how the derivatives change with the parameters.",
    "{advice}",
)
SUM_NOT_TRAINED = Text(
    "A sum of losses is computed here, but {times} backward calls include only some of its terms.",
    "The sum looks like the loss, but training minimizes a part of it.",
    "Back-propagate the sum.",
)
ONLY_THE_LAST = Text(
    "A loss is computed here several times before each backward call, but only the last one is back-propagated.",
    "The other losses train nothing.",
    "Add the losses up (loss = loss + ...), and back-propagate the sum.",
)
ONLY_SHOWN = Text(
    "The value of line {line} has a graph and is displayed, but none of {times} backward calls includes it.",
    "If it is a term of the loss, training does not minimize it.",
    "Add it to the loss, or compute it under torch.no_grad() if it is only displayed.",
)
