"""Texts about graphs that stay alive, modes that stay on, and values that were computed once."""

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
EVALUATION_KEEPS = Text(
    "{holder} keeps the graphs of at least {graphs} forward passes of an evaluation alive, and no backward "
    "pass uses them.",
    "The activations of each batch stay in memory, so memory grows with the evaluation data.",
    "Evaluate without graphs: put the loop under torch.no_grad().",
)

# GG602

LEFT_IN_EVAL = Text(
    "{steps_in_eval} of {steps} steps are made in evaluation mode: eval() is called here, and nothing calls "
    "train() before the next step.",
    "Dropout is off and batch norm uses its running statistics: training continues with a different model.",
    "Call {model}.train() at the start of each epoch, or after each evaluation.",
)

# GG603

OLD_VALUES = Text(
    "The loss is computed from old values of {parameters}: they were computed once, and later steps do not "
    "change them.",
    "Forward passes ignore these steps, so the loss stays as it was.",
    "Compute these values from the parameters in each forward pass. torch.autocast keeps casts until its "
    "block ends: enter it in each iteration, around the forward pass only.",
)
