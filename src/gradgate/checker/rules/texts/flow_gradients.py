"""Texts about gradients that are zero or not finite, and about inputs of the wrong kind."""

from gradgate.checker.rules._rule import Text

# GG403

ALWAYS_ZERO = Text(
    "The gradient of {parameters} was all zeros in each of {steps} steps, because {operation} at line {line} "
    "has a derivative of zero.",
    "The parameters are in the graph and in the optimizer, but the loss doesn't train them.",
    "{cure}",
)
EQUAL_SIDES = Text(
    "This line compares or cancels a value with itself, {times} times: a difference is 0, a ratio is 1, and "
    "the gradients of both sides cancel.",
    "The term trains nothing. The mistake is easy to miss if the loss has other terms, which still fall.",
    "Compare with a different value: the labels, another model's output, or another view of the data. In a "
    "straight-through estimator, detach the difference: x + (q - x).detach(). Copy weights by "
    "p.detach().clone().",
)

# GG404

NOT_FINITE = Text(
    "{what} NaN or infinite here ({operation}), and {optimizer} updated {parameters} with it, first in step "
    "{step}.",
    "After this step the parameters are NaN, and so is every value computed from them.",
    "{cure}",
)

# GG409

_NO_LIKELIHOOD = "The gradient vanishes where the model is most wrong, and the loss is not a likelihood."
PROBABILITIES = Text(
    "A loss of log-probabilities gets the output of a softmax.",
    _NO_LIKELIHOOD,
    "Use log_softmax instead of softmax for the first argument.",
)
SCORES = Text(
    "A loss of log-probabilities gets the output of a layer.",
    "Without log_softmax, the loss has no lower bound: it falls as the scores grow.",
    "Apply log_softmax over the classes first. cross_entropy includes log_softmax.",
)
OTHER_AXIS = Text(
    "A loss of log-probabilities gets a log_softmax over a dimension other than the classes.",
    "The classes of a sample don't compete: the loss is not a likelihood of the targets.",
    "Apply log_softmax over the dimension of the classes.",
)
NORMALIZED_TWICE = Text(
    "The softmax or sigmoid computed here is passed to a loss that applies a second one: the loss expects "
    "logits.",
    "The gradient vanishes where the model is confident, even if it is wrong, and the loss can't reach 0.",
    "Pass the values before it to the loss. Apply it only where the script needs probabilities.",
)
