"""Texts about optimizer steps, learning rates, gradient scalers, clipping, and parameters' memory."""

from gradgate.checker.rules._rule import Text

_COURSE = "The learning rate doesn't follow the schedule for most of the run."

# GG301

NEVER_ADVANCED = Text(
    "{kind} never changes a learning rate: it is advanced {advanced} times, and all {steps} steps of "
    "{optimizer} use the rate {rate:g}.",
    _COURSE,
    "Call {name}.step() after the optimizer's step, or once an epoch if the schedule's length counts epochs.",
)
OTHER_OPTIMIZER = Text(
    "{kind} changes an optimizer that never steps. {optimizer} updates the same parameters, but its learning "
    "rate is {rate:g} in all {steps} steps, although {kind} is advanced {advanced} times.",
    _COURSE,
    "Construct the scheduler after {optimizer}, and pass {optimizer} to it.",
)
LATER_GROUP = Text(
    "{kind} doesn't change the learning rate of {parameters}, whose group was added after the scheduler was "
    "constructed: it is {rate:g} in all {steps} steps, while the other rates change.",
    "A scheduler sets only the groups that the optimizer has when the scheduler is constructed.",
    "Add the group first, or give the scheduler a new optimizer when the groups change.",
)
TOO_EARLY = Text(
    "The schedule is advanced before the first step: the first learning rate, {first:g}, is never used, and "
    "training begins at {used:g}.",
    "Each step uses the learning rate meant for the next step.",
    "Call {name}.step() after {optimizer}.step(), or at the end of the epoch.",
)
SOON_OVER = Text(
    "The schedule is over early: {kind} is advanced {advanced} times for {steps} steps, and the last four "
    "fifths of the steps get {share:.0%} of the sum of all learning rates.",
    "Almost nothing is trained after the first fifth of the run.",
    "Call {name}.step() once an epoch, or only where {optimizer}.step() is called, or make the schedule "
    "longer.",
)
CLIMBS_BACK = Text(
    "{kind} is {length:g} long but is advanced {advanced} times for {steps} steps: the learning rate falls "
    "to {low:g} and climbs back to {high:g}.",
    "The cosine is defined up to its length. After that, it goes back up the same way.",
    "Call {name}.step() {length:g} times, for example once an epoch, or make the schedule {advanced} long. For "
    "restarts, use CosineAnnealingWarmRestarts.",
)
NOT_REACHED = Text(
    "{kind} is {length:g} long but is advanced only {advanced} times: the run of {steps} steps and {micro} "
    "micro-batches ends after {share:.0%} of the schedule.",
    _COURSE,
    "Advance the schedule in the unit of its length: after each step, once a micro-batch or once an epoch. "
    "Or make it {advanced} long.",
)
ABSOLUTE_RATES = Text(
    "The function of {kind} returns the learning rate itself, {base:g}, so the rate is at most {highest:g}: "
    "its product with the optimizer's rate.",
    "LambdaLR multiplies the optimizer's learning rate by the returned value.",
    "Return a factor: 1 for the optimizer's own learning rate.",
)
BEGUN_ANEW = Text(
    "{kind} is constructed {times} times for {optimizer}, and each time the learning rate jumps back to "
    "{rate:g} before the schedule has reached its end.",
    _COURSE,
    "Construct the scheduler once, before the loop.",
)

# GG302

_ANY_SIZE = "The steps use gradients of any size: the limit set here doesn't apply to them."
_UNCLIPPED = "; {steps} steps of {optimizer} use unclipped gradients."
CLIPS_NOTHING = Text(
    "clip_grad gets no parameters in {empty} of {calls} calls" + _UNCLIPPED,
    _ANY_SIZE,
    "Pass model.parameters() again, or store list(model.parameters()): an iterator can be used only once.",
)
CLIPS_AFTER = Text(
    "Gradients are clipped after the step that used them" + _UNCLIPPED,
    _ANY_SIZE,
    "Clip between backward() and optimizer.step().",
)
CLIPS_BEFORE = Text(
    "Gradients are clipped before backward() computes them" + _UNCLIPPED,
    _ANY_SIZE,
    "Clip between backward() and optimizer.step().",
)
CLIPS_OTHERS = Text(
    "The gradients of {parameters} are clipped, but no step uses them" + _UNCLIPPED,
    _ANY_SIZE,
    "Clip the parameters that the optimizer updates.",
)
CLIPS_AT_EACH = Text(
    "Gradients are clipped before the last of {micro_batches} micro-batches is added, {times} times in each "
    "window{so_far}.",
    "Each call shrinks the sum so far, so early micro-batches count less than late ones.",
    "Clip once, after the last micro-batch, just before optimizer.step().",
)

# GG303

_DIVIDED = "The gradients are divided by the scaler's scale: almost nothing is left."
CLIPPED_SCALED = Text(
    "Gradients are clipped before the gradient scaler unscales them, in {steps} steps.",
    "The limit applies to gradients that still include the scaler's scale, so the clipped gradients are too "
    "small by this factor.",
    "Call scaler.unscale_(optimizer) after backward() and before clipping.",
)
AROUND_THE_SCALER = Text(
    "{optimizer} is stepped without the gradient scaler: its gradients still include the scale, in {steps} "
    "steps.",
    "The gradients are multiplied by the scaler's scale, and steps with inf or nan are not skipped.",
    "Write scaler.step({optimizer}), then scaler.update(). If another line does this, remove this one.",
)
NOT_SCALED = Text(
    "This loss isn't scaled, but the gradient scaler divides its gradients by the scale before {steps} steps.",
    _DIVIDED,
    "Write scaler.scale(loss).backward() here.",
)
PARTLY_SCALED = Text(
    "Only a part of the loss is scaled, but the gradient scaler divides all gradients by the scale, in {steps} "
    "steps.",
    _DIVIDED,
    "Add the parts first, then scale the sum: scaler.scale(total).backward().",
)
SCALERS_BUILT = Text(
    "{built} gradient scalers are constructed, one for each step; {skipped} of the steps are skipped.",
    "The scale never adapts: if 65536 is too large, every step has inf and is skipped.",
    "Construct the scaler once, before the loop, and call scaler.update() after each scaler.step().",
)
NEVER_SCALED = Text(
    "A gradient scaler is constructed and never used: this loss isn't scaled, although layers compute in "
    "float16.",
    "Gradients below 6e-8 are zero in float16, and those below 6e-5 lose digits.",
    "Write scaler.scale(loss).backward(), scaler.step(optimizer) and scaler.update(). Or use bfloat16, which "
    "needs no scaler.",
)

# GG304

_NOTHING = "Nothing is trained: the parameters keep their initial values."
NEVER_STEPPED = Text(
    "{optimizer}.step is never called: {calls} backward calls compute gradients that no step uses.",
    "{parameters} keep their initial values.",
    "Call {optimizer}.step(), with parentheses, after backward(). If a condition guards it, check where its "
    "variables are set.",
)
HOLDS_OTHERS = Text(
    "None of {steps} steps of {optimizer} had a gradient: {optimizer} holds {held}, but the losses reach "
    "{reached}, which no optimizer changes.",
    _NOTHING,
    "Pass {optimizer} the parameters that should be trained: {reached}.",
)
STEPS_FIRST = Text(
    "{optimizer} steps before backward(): none of its {steps} steps has a gradient.",
    _NOTHING,
    "Clear, call backward(), then step.",
)
NO_RATE = Text(
    "The learning rate of {optimizer} is 0 in all of its {steps} steps.",
    _NOTHING,
    "Use a positive learning rate, or a schedule whose factor is positive from the first step on. A division "
    "that rounds, // or int(), gives 0 for numbers below 1.",
)
ROUNDED_AWAY = Text(
    "{steps} steps of {optimizer} hardly moved {parameters}, although the gradients are not zero: at "
    "learning rate {rate:g}, {dtype} rounds most of their updates away.",
    "An update below half the distance to the next {dtype} number has no effect, however often it is repeated.",
    "Keep the parameters in float32 and run the forward pass under torch.autocast.",
)
NOTHING_WRITES = Text(
    "{calls} backward calls compute gradients of {parameters}, whose values nothing ever changes.",
    "If the script updates them by hand, the update makes a new tensor, and the next gradient is computed at "
    "the old values.",
    "Write the update in place, under torch.no_grad(): p -= lr * p.grad. If the script only reads gradients, "
    "nothing is wrong.",
)

# GG305

ONTO_ITSELF = Text(
    "This line copies {parameters} onto itself, {times} times, so no value changes: the source and the "
    "target share their memory.",
    "What should keep earlier values changes with each step, and what should follow another network does not.",
    "Make the target a network of its own, target = copy.deepcopy(network), and copy from the network that "
    "is trained.",
)
KEPT = Text(
    "The state that is kept here shares its memory with {parameters}: later steps change it too, and line "
    "{line}, which loads it, restores nothing.",
    "state_dict() returns the parameters themselves, not copies, so the values of this moment are lost.",
    "Keep a copy: copy.deepcopy(model.state_dict()).",
)
PULLED = Text(
    "The script moves {parameters} {share:.3g} of the way to values that never change, {times} times.",
    "Each optimizer step is partly reverted, and the other network is never updated.",
    "Move the average towards the trained values instead: average.lerp_(trained, {rate:.2g}), under "
    "torch.no_grad().",
)
LEFT = Text(
    "An evaluation overwrites {parameters} and doesn't restore the values, {times} times: training continues "
    "from them.",
    "The trained weights are replaced, but the optimizer's state belongs to the old weights.",
    "Copy the weights before the evaluation and restore them after it, or evaluate a copy of the model.",
)
