"""What GG101 to GG105 say: windows, their divisors, their items, the reduction of a loss."""

from gradgate.checker.rules._rule import Text

_LOST = (
    "Gradients that no step uses are lost, and a window whose number of micro-batches differs from its "
    "divisor gives a gradient of the wrong size."
)
_ADD_UP = (
    "Gradients add up: the update equals the update of the whole batch only if the micro-batches' weights"
    " add up to 1."
)
_MEANS = "The mean of means isn't the mean over all items: items in small micro-batches count too much."
_TERM = "The term has a larger weight than the code says, which changes the balance of the losses."

FIRST = Text(
    "The first step uses 1 micro-batch, other steps use {size}{rest}.",
    _LOST,
    "Step when (i + 1) % {size} == 0, where i counts from 0, and once more for the micro-batches left at "
    "the end of an epoch.",
)
LEFT = Text(
    "No step uses the gradients of the {rest} left after the last window of {size}{times}.",
    _LOST,
    "Step once more for the remaining micro-batches at the end of an epoch, and divide by their number.",
)
CARRIED = Text(
    "A window holds {largest} micro-batches, other windows {size}: the leftovers of one epoch are added "
    "to the next epoch.",
    _LOST,
    "Step for the micro-batches left at the end of the epoch, and divide by their number.",
)
OFF = Text(
    "Windows hold {held} micro-batches but are divided by {divisor:g}.",
    _LOST,
    "Step after {divisor:g} micro-batches that were back-propagated, or divide by the number that a step "
    "uses.",
)
SURPLUS = Text(
    "{optimizer} steps here after each micro-batch, {times} times, and in line {line} after every {every}"
    " micro-batches: each window holds 1 micro-batch instead of {every}.",
    "No step uses the gradient of a whole window. If losses are divided by the window's size, steps are "
    "too small.",
    "Remove this step, and clear only after the step of line {line}.",
)
UNDIVIDED = Text(
    "{micro_batches} micro-batches are added up without dividing their means: the gradient is "
    "{weights_add_up_to:.3g} times the gradient of the whole batch.",
    _ADD_UP,
    "{advice}",
)
DIVISOR = Text(
    "{micro_batches} micro-batches are added up and each is divided by {by}: the gradient is "
    "{weights_add_up_to:.3g} times the gradient of the whole batch.",
    _ADD_UP,
    "{advice}",
)
TERM = Text(
    "Each of {micro_batches} micro-batches adds one term of the loss{computed} with full weight, but "
    "divides the other terms by {micro_batches}: the term counts {micro_batches} times as much as in the "
    "loss of the whole batch.",
    _ADD_UP,
    "Divide the whole loss, after all terms are added.",
)
BY_ACCUMULATOR = Text(
    "The loss is divided by {micro_batches}, the number of micro-batches, and the update divides again by"
    " the total count: the gradient is {micro_batches} times too small.",
    "An accumulator adds sums and counts, and divides once. Pass it each mean without a division.",
    "Pass the loss without the division.",
)
UNEQUAL = Text(
    "{micro_batches} micro-batches {of} have equal weight: an item in the smallest weighs {times:.3g} "
    "times as much as an item in the largest.",
    _MEANS,
    "{advice}",
)
SHORT = Text(
    "The last window holds {held} but is divided by {divided_by}: its gradient is {share:.3g} times the "
    "correct gradient.",
    "Items in the shorter window count less than all other items, and the update is too small.",
    "{advice}",
)
PAIRS = Text(
    "This loss compares the items of a micro-batch with one another, and several micro-batches are "
    "accumulated: pairs of items from different micro-batches are left out.",
    "Each item is compared with fewer others than in the whole batch, so no division of the sum gives the"
    " loss of the whole batch.",
    "{unless}Use a larger batch without accumulation, or compute the loss over the whole window: "
    "update.backward_coupled(encode, micro_batches, loss_fn), with gradgate.Accumulator.",
)
MISCOUNTED = Text(
    "The count is {given:g} for a mean over {items:g} items, but an earlier micro-batch of the window has"
    " the count {first_count:g} for {first_items:g} items: an item here weighs {times:.3g} times as much.",
    "The counts weight the micro-batches: with these counts, the update isn't the mean over all items.",
    "{advice}",
)
RANKS = Text(
    "Each rank's loss is a mean over its own items ({listed}), but the gradients are {combined} as if the"
    " counts were equal: an item on the rank with the fewest weighs {times:.3g} times as much as an item "
    "on the rank with the most.",
    "The mean of the ranks' means isn't the mean over all items: items on ranks with few items count too "
    "much.",
    "{advice}",
)
DIVIDED_AGAIN = Text(
    "A mean over {items:g} items is divided once more by the batch size, {divided_by:g}.",
    "The gradient is too small by this factor, and an item counts more in a short batch than in a full one.",
    "Remove the division, or use reduction='sum'.",
)
OVER_MASKED = Text(
    "A mean is taken over all {items:g} positions although a mask, or ignored targets, keep only "
    "{least:.0f} to {most:.0f}% of them.",
    "The positions left out count as zeros: the more of them a batch has, the smaller the weight of its "
    "items.",
    "Divide the sum by the number of positions that are kept: (loss * mask).sum() / mask.sum(), or total "
    "/ (labels != ignore_index).sum().",
)
OVER_CLASSES = Text(
    "A mean over samples and {classes} classes also divides the divergence or cross entropy by {classes}.",
    "The loss is too small by this factor, so it weighs less against other losses.",
    "Sum over the classes and take the mean over the samples: reduction='batchmean', or .sum(1).mean().",
)
SUM_BESIDE_MEAN = Text(
    "This term is a sum over a batch of {batch} samples, shape {summed}, but the loss adds it to a mean "
    "over the batch, shape {averaged}.",
    "The sum weighs {batch} times as much as its mean over the samples, and more in a larger batch.",
    "Average this term over the samples, too: .flatten(1).sum(1).mean(), or divide the sum by the batch "
    "size.",
)
ADDED_TWICE = Text(
    "The loss adds the same term (line {term_line}) {times} times.",
    _TERM,
    "Add each term once: one of the summands here already contains it.",
)
PROPAGATED_TWICE = Text(
    "This loss is back-propagated {again}, before the same step.",
    _TERM,
    "Back-propagate the sum of the losses once, without retain_graph.",
)
DECAYED_TWICE = Text(
    "{parameters} parameters have an L2 penalty in the loss (line {term_line}), and {optimizer} also "
    "applies a weight decay of {weight_decay:g} to them.",
    "Both shrink the weights, so they are regularized twice.",
    "Use only one: weight_decay=0 here, or no penalty in the loss.",
)
BROADCAST = Text(
    "Shapes [{size}, 1] and [{size}] are broadcast here: the result has the shape [{size}, {size}], and "
    "{effect}.",
    "{why}",
    "Give both the same shape: call squeeze(1) on the value of shape (N, 1).",
)
