"""Texts of GG401 and GG406: parameters that no loss reaches, and targets that a loss trains."""

from gradgate.checker.rules._rule import Text

NOT_REACHED = Text(
    "`{attribute}` {how}: no gradient reached {names} in {steps} steps.",
    "The layer keeps its random initial values and has no effect on the loss.",
    "{advice}",
)

# By the kind of Combined
ATTACHED = {
    "own target": Text(
        "Gradient flows through the target to {names}, and the loss compares the target with the same "
        "network: the loss also trains the target.",
        "The network can lower the loss by changing its targets instead of its predictions.",
        "Compute the target under torch.no_grad(), or detach the network's value in it.",
    ),
    "teacher": Text(
        "The divergence also trains {names} through its target. They get no other gradient: the "
        "teacher is trained to match the student.",
        "Teacher and student can lower the loss by agreeing on arbitrary outputs.",
        "Compute the target under torch.no_grad(), and leave the teacher's parameters out of the optimizer.",
    ),
    "peers": Text(
        "The divergence trains {names} through its target: each loss also trains the other network, "
        "which has a loss of its own.",
        "The networks can lower the loss by agreeing on arbitrary outputs.",
        "Compute the target under torch.no_grad(), or detach it: target.detach().",
    ),
    "pulled teacher": Text(
        "The target of the divergence trains {names}, which have an optimizer and a cross entropy of "
        "their own: the divergence also pulls the teacher towards the student.",
        "The networks can lower the loss by agreeing on wrong outputs.",
        "Compute the target under torch.no_grad(), or detach it: target.detach().",
    ),
    "trained target": Text(
        "The loss also trains {names} through its target. They get no other gradient: the teacher is "
        "trained to match the student.",
        "Teacher and student can lower the loss by agreeing on arbitrary outputs.",
        "Compute the target under torch.no_grad(), and leave the teacher's parameters out of the optimizer.",
    ),
    "averaged weights": Text(
        "The loss compares the network with the output of its averaged weights, and gradient flows "
        "through the average to {names}: the loss also trains its target.",
        "The network can lower the loss by changing its targets instead of its predictions.",
        "Compute the average under torch.no_grad(), or from parameter.detach().",
    ),
    "labels": Text(
        "Gradient flows through the target of the binary cross entropy to {names}: the loss also "
        "trains the target.",
        "The network can lower the loss by changing its targets instead of its predictions.",
        "Detach the network's values before computing the target from them.",
    ),
    "views": Text(
        "The loss only compares two outputs computed by {names}, and both have a gradient.",
        "A constant output minimizes the loss, so the network may collapse.",
        "Detach the side that doesn't run through the predictor: z.detach(). Or compute it under "
        "torch.no_grad() with a moving average of the encoder.",
    ),
    "added again": Text(
        "Another line adds the same error of the same two values with another weight: together they "
        "are one term, whose gradient flows to both values, and so to {names}.",
        "The two weights only add up. They don't set how far each value moves towards the other.",
        "Detach one value in one term, and the other value in the other: F.mse_loss(a, b.detach()) + "
        "beta * F.mse_loss(a.detach(), b).",
    ),
    "detached once": Text(
        "The loss adds this error again with one value detached. Here neither value is detached, so "
        "this error also trains {names}, which the other error trains.",
        "The weight of the other error doesn't set how far its value moves: this error moves it, too.",
        "Detach here the value that isn't detached there: F.mse_loss(a, b.detach()) + beta * "
        "F.mse_loss(a.detach(), b).",
    ),
    "advantage": Text(
        "The log-probability is multiplied by an advantage that has a gradient: the policy's loss "
        "also trains {names}.",
        "The policy's gradient moves the critic away from the returns that the critic should predict.",
        "Detach the advantage here: log_prob * advantage.detach().",
    ),
}
DROPPED = Text(
    "`{name}.detach()` returns a new tensor, which is discarded here: the loss's gradient still flows "
    "through `{name}` to {names}.",
    "The loss treats the value as if it had not been detached.",
    "Assign the result: {name} = {name}.detach().",
)
AVERAGE = Text(
    "Other code moves {path}, which starts as a copy of {source}, between the steps, as an average or a "
    "target. But the gradient of this loss also flows to {path}, and {optimizer} updates it.",
    "The network can lower the loss by changing its targets instead of its predictions.",
    "Run {path} under torch.no_grad(), and leave its parameters out of {optimizer}.",
)
