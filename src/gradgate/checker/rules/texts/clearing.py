"""What GG201 to GG203 say: gradients that are used again, lost, or of another loss."""

from gradgate.checker.rules._rule import Text

_AGAIN = "Every step applies the gradients of all earlier steps again, and the update keeps growing."
_OTHER = (
    "The step also minimizes another optimizer's loss. In adversarial training the two losses oppose each"
    " other."
)

USED_AGAIN = Text(
    "{times} of {steps} use gradients of {names} that earlier steps already used: one step uses those of "
    "up to {most_backwards_in_a_step} backward calls{cleared}.",
    _AGAIN,
    "Call {optimizer}.zero_grad() before {before}.",
)
UNCHANGED = Text(
    "{times} of {steps} use exactly the gradients of {names} that the step before used, although "
    "{backwards} backward calls came in between.",
    "A gradient belongs to the weights and the batch that it was computed from: these steps follow old ones.",
    "Call {optimizer}.zero_grad() after its step, so that each step follows new gradients.",
)
CLOSURE = Text(
    "One step of {optimizer} adds up the gradients of up to {most_backwards_in_a_step} backward calls in "
    "its closure, and nothing in the closure clears the gradients of earlier calls.",
    "The optimizer compares gradients of single calls, but gets running sums.",
    "Call {optimizer}.zero_grad() in the closure, before backward().",
)
LENT = Text(
    "Nothing clears the gradients of {names}. They are assigned to {receivers} for {steps} steps, so each"
    " backward() adds to the gradients of all earlier steps.",
    _AGAIN,
    "Also clear these gradients, before the backward() of line {line} computes them: {clear}.",
)
LOST = Text(
    "The gradients of {lost} of {calls} backward calls are cleared before any step uses them.",
    "The gradients are lost before the optimizer sees them, so this backward pass trains nothing.",
    "Clear after the step, or before the first backward() that the step should use.",
)
LEAK = Text(
    "In {times} of {steps}, the gradients of {names} include the loss of line {leaking_line}, in addition"
    " to the loss of line {own_line}.",
    _OTHER,
    "{advice}",
)
ATTACK = Text(
    "In {times} of {steps}, the gradients include those of {backwards} backward calls of an attack, in "
    "addition to the loss of line {training_line}.",
    "The attack needs only the input's gradient, but its backward() also adds to the model's.",
    "Use torch.autograd.grad(loss, input) in the attack, or clear the model's gradients right before line"
    " {training_line}.",
)
