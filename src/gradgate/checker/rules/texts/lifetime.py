"""Texts about graphs that stay alive, and modes that stay on."""

from gradgate.checker.rules._rule import Text

# GG601

GROWS = Text(
    "The graph grows with each step: it had {first} nodes at first and {nodes} after {calls} calls, {old} of "
    "them made before the last step.",
    "Each backward pass goes through all earlier steps, so memory and time grow with every step.",
    "Detach values that are carried over from step to step: self.state = new.detach(). For parameters that "
    "are updated by hand: (p - lr * gradient).detach().requires_grad_(). Then retain_graph=True is not needed.",
)
KEEPS = Text(
    "{holder} keeps the graphs of at least {graphs} earlier backward calls alive.",
    "Memory grows with each step until it runs out.",
    "Keep only the value: loss.item(), or output.detach().",
)

# GG602

LEFT_IN_EVAL = Text(
    "{steps_in_eval} of {steps} steps are made in evaluation mode: eval() is called here, and nothing calls "
    "train() before the next step.",
    "Dropout is off and batch norm uses its running statistics: training continues with a different model.",
    "Call {model}.train() at the start of each epoch, or after each evaluation.",
)
