"""Texts of GG405: gradients that no optimizer uses."""

from gradgate.checker.rules._rule import Text

_COMPUTED = (
    "{backwards} backward calls compute gradients of {size} (estimated) for {names}. No optimizer uses them."
)
_WHY = "The gradients cost memory, and time in each backward pass, but update no parameter."

NOT_TRAINED = Text(
    _COMPUTED,
    _WHY,
    "To train {network}, pass its parameters to an optimizer. Otherwise freeze it where it is made, with "
    "requires_grad_(False), or run it under torch.no_grad().",
)
PASSED_THROUGH = Text(
    _COMPUTED,
    _WHY,
    "To train {network}, pass its parameters to an optimizer. Otherwise freeze it where it is made, with "
    "requires_grad_(False). Don't use torch.no_grad(): gradients of trained parameters flow through it.",
)
OF_ANOTHER = Text(
    "{backwards} backward calls also compute gradients of {size} (estimated) for {names}. No step uses them.",
    _WHY,
    "Turn off the gradients of {network} while this loss is computed: requires_grad_(False) before the "
    "forward pass, requires_grad_(True) after backward(). If the loss trains nothing before it, detach its "
    "output instead.",
)
