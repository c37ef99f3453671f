"""Texts of GG401 and GG406: parameters that no loss reaches, and targets that a loss trains."""

from gradgate.checker.rules._rule import Text

_IDLE = "The parameters keep their random initial values and have no effect on the loss."
UNUSED = Text(
    "What this line computes from {names} is in no loss that is back-propagated: no gradient reached them in "
    "{steps} steps.",
    _IDLE,
    "Use the result in the loss that is back-propagated, or remove the layer.",
)
USED_TWICE = Text(
    "This line uses `{what}` again, but {names}, of the same shape, are never used: no gradient reached them in "
    "{steps} steps.",
    _IDLE,
    "Use the other layer here, or remove it from the model.",
)
NEVER_USED = Text(
    "No loss uses {names}, which are made here: no gradient reached them in {steps} steps.",
    _IDLE,
    "Use the layer in the forward pass and in the loss that is back-propagated, or remove it.",
)

_MOVES = "The network can lower the loss by changing its targets instead of its predictions."
_DETACH = "Compute the target under torch.no_grad(), or detach it: target.detach()."

# By the kind of Target
ATTACHED = {
    "target": Text(
        "Gradient flows through the target of this loss to {names}: the loss also trains its target.",
        _MOVES,
        _DETACH,
    ),
    "other": Text(
        "Gradient flows through the target of this error to {names}, which nothing else in the loss trains. Their "
        "network was trained before, or other code moves it.",
        "Both networks can lower the loss by agreeing on arbitrary outputs.",
        "Compute the target under torch.no_grad(), and leave its network out of the optimizer.",
    ),
    "next": Text(
        "Gradient flows through the target to {names}, and the loss compares the target with the same network: "
        "the loss also trains the target.",
        _MOVES,
        _DETACH,
    ),
    "advantage": Text(
        "The log-probability is multiplied by an advantage that has a gradient: the policy's loss also trains "
        "{names}.",
        "The policy's gradient moves the critic away from the returns that the critic should predict.",
        "Detach the advantage here: log_prob * advantage.detach().",
    ),
    "twice": Text(
        "The loss compares the same two values twice. Elsewhere one of them is detached, but not here: the "
        "gradient flows to both, and so to {names}.",
        "The terms' weights don't set how far each value moves towards the other.",
        "Detach one value in one term, and the other value in the other: F.mse_loss(a, b.detach()) + "
        "beta * F.mse_loss(a.detach(), b).",
    ),
    "views": Text(
        "The loss only compares a predictor's output with an encoder's output, and both have a gradient, which "
        "reaches {names}.",
        "A constant output minimizes the loss, so the network may collapse.",
        "Detach the encoder's side: z.detach(). Or compute it under torch.no_grad() with a moving average of the "
        "encoder.",
    ),
    "dropped": Text(
        "This detach() returns a new tensor, which is discarded: the loss's gradient still flows through the "
        "value to {names}.",
        "The loss treats the value as if it had not been detached.",
        "Assign the result: x = x.detach().",
    ),
}
