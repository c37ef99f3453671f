"""Texts of GG501 to GG505: who holds a parameter, and what moves it."""

from gradgate.checker.rules._rule import Text

_UNTRAINED = "These parameters keep their initial values, and the rest of the model must adapt."
_NOT_HELD = (
    "No step changed {names} ({reason}), although {backwards} backward calls computed gradients for {them}."
)

HIDDEN = Text(
    _NOT_HELD,
    _UNTRAINED,
    "Put layers of a plain list or dict into an nn.ModuleList or nn.ModuleDict, and bare tensors into an "
    "nn.ParameterList or nn.ParameterDict.",
)
PLAIN = Text(_NOT_HELD, _UNTRAINED, "Make the tensor a parameter: nn.Parameter(...).")
MADE_LATER = Text(
    _NOT_HELD,
    _UNTRAINED,
    "Construct the module once, before {optimizer}, or add its parameters here: "
    "{optimizer}.add_param_group({{'params': ...}}).",
)
UNFROZEN = Text(
    _NOT_HELD,
    _UNTRAINED,
    "Pass these parameters to {optimizer}, too, when it is constructed: an optimizer skips frozen parameters. "
    "Or add them once where they are unfrozen: {optimizer}.add_param_group({{'params': ...}}).",
)
UNLISTED = Text(_NOT_HELD, _UNTRAINED, "Pass {optimizer} all parameters that should be trained.")
BUILT_ANEW = Text(
    "This line builds a new layer in each iteration: {parameters} parameters received gradients in {backwards} "
    "backward calls, each parameter in only one call, and no step changed any of them.",
    "The layer has new random values each time: it learns nothing, and the model can't adapt to it.",
    "Build the layer once, in __init__ or before the optimizer, which needs its parameters. Only call it "
    "here. If it is random on purpose, freeze it: requires_grad_(False).",
)

REPLACED = Text(
    "{names} {was} made after {optimizer}, which still holds {old} that losses no longer reach. {steps} of "
    "its steps left the new {parameter} unchanged.",
    "The optimizer does not update the parameters that get gradients.",
    "Construct {optimizer} after this line, or write into the old {parameter}: copy_() under torch.no_grad(), or "
    "load_state_dict().",
)
REBOUND = Text(
    "`{name}` becomes a new tensor here, but {optimizer} holds the old {name}. {backwards} backward calls "
    "since then did not reach the old one, and no step changes the new one.",
    "The optimizer does not update the tensor that the loss uses.",
    "Write into the tensor that {optimizer} holds: {name}.copy_(...) under torch.no_grad().",
)

LISTED_TWICE = Text(
    "{optimizer} lists {names} twice, so each step updates {them} twice.",
    "Each update has twice the learning rate, and the running averages are updated twice.",
    "List each parameter once: dict.fromkeys(parameters) drops duplicates. Is another network missing instead?",
)
OF_TWO = Text(
    "{first} and {second} both update {names} with the same gradient, {steps} times.",
    "One gradient updates the parameters twice, and each optimizer's running averages miss the other's steps.",
    "Pass {them} to only one optimizer: remove {them} from {taking}.",
)
MADE_AGAIN = Text(
    "{kind} was constructed {made} times for {names}, each time without the earlier state; none made more "
    "than {most} step{s}.",
    "The first steps after a reset have no running averages behind them: Adam's are as long as the learning rate "
    "allows, whatever the gradient, and SGD's momentum is lost.",
    "{begin} it once, before the loop, and pass it in. Set group['lr'] to change only the learning rate.",
)
STATE_LOST = Text(
    "Loading this state leaves {optimizer} with state for {after} of {before} parameters, {times} time{s}, "
    "while the model keeps its values.",
    "The first steps after a reset have no running averages behind them.",
    "To change the learning rate, set group['lr']. Load a state only together with the model that it was "
    "saved with.",
)

_DRIFTS = "The frozen part changes in every step."
FROZEN_MOVES = Text(
    "{parameters} frozen parameter{s} ({names}) changed in {steps} steps of {optimizer}, {how}.",
    _DRIFTS,
    "Set the gradients to None where the parameters are frozen, or leave the parameters out of {optimizer}.",
)
MISFROZEN = Text(
    "Setting {attribute} here freezes nothing: {steps} steps still changed {names}.",
    "Python accepts any attribute of a module or tensor, but PyTorch reads only each parameter's requires_grad.",
    "Call requires_grad_(False) on the module or parameter instead.",
)
STATISTICS_MOVE = Text(
    "{layers} batch norm{s} ({names}) that no step trains {are} in training mode: {their} running statistics "
    "changed in {steps} steps, but the parameters did not.{drift}",
    "Evaluation uses these statistics: the features differ from those of the trained network. Some scripts "
    "do this on purpose, to adapt the statistics to new data.",
    "Put the untrained part into evaluation mode, and again after each train(){calls}.",
)
