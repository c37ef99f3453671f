"""What GG106 says: gradients and values of several ranks."""

from gradgate.checker.rules._rule import Text

_APART = "The ranks train different models from then on, and the mean gradient is right for none of them."

UNSYNCHRONIZED = Text(
    "In {alone} of {windows} windows {how}: each rank steps with the gradients of its own data.",
    "Every rank trains its own model on its part of the data, and the models drift apart.",
    "{advice}",
)
LEFT_OUT = Text(
    "The gradients of {names} are not averaged over the ranks in {steps} steps, although other "
    "parameters' gradients are.",
    "Each rank trains these parameters on its own part of the data, and they drift apart.",
    "{advice}",
)
DIVIDED_TWICE = Text(
    "The {what} is divided by {ranks}, the number of ranks, and the gradients are averaged over the ranks"
    " as well, in {steps} steps.",
    "The gradient is {ranks} times too small.",
    "Don't divide the {what}: the gradients are already averaged over the ranks.",
)
NEVER_DIVIDED = Text(
    "The gradients of {ranks} ranks are summed and never divided, in {steps} steps. Each rank's loss is a"
    " mean over its own items.",
    "The gradient is {ranks} times the gradient of the mean over all items, and grows with the number of "
    "ranks.",
    "Divide after the sum, parameter.grad /= dist.get_world_size(), unless the learning rate is chosen "
    "for the sum.",
)
SUMMED_AGAIN = Text(
    "The running sum of gradients is all-reduced over {ranks} ranks at each of {micro_batches} "
    "micro-batches, in {windows} windows.",
    "Each all-reduce sums the earlier sum again: the first micro-batch counts {ranks}^{again} times.",
    "All-reduce once, after the last micro-batch of the window, before the step.",
)
SYNCHRONIZED_AT_EACH = Text(
    "DDP synchronizes each of {micro_batches} micro-batches of a window, in {windows} windows.",
    "The gradients are correct, but DDP communicates them for each micro-batch instead of once per window.",
    "Put the forward and backward of all but the last micro-batch under model.no_sync().",
)
UNEVEN_STEPS = Text(
    "{optimizer} makes {least} steps on one rank and {most} on another, although DDP averages the "
    "gradients of the same {calls} backward calls on all ranks.",
    _APART,
    "Make all ranks step or skip together: all_reduce the value that decides.",
)
DIFFERENT_START = Text(
    "{names} did not begin with the same values on {ranks} ranks, although the ranks average gradients in"
    " {steps} steps.",
    "Each rank applies the mean gradient to different weights: the models stay different, and the mean "
    "gradient is right for none of them.",
    "Copy rank 0's values to all ranks before training. DistributedDataParallel does this; by hand, call "
    "dist.broadcast(parameter.detach(), src=0) for each parameter.",
)
APART = Text(
    "{names} began with the same values on {ranks} ranks, but the values differ in the last {steps} "
    "steps. {cause}",
    _APART,
    "{advice}",
)
