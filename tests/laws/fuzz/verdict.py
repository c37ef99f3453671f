"""Exact, or an error before anything was stepped: every other outcome is a failure."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

import gradgate as gg
from gradgate.errors import CoupledLossWarning, GradgateError
from tests.laws.fuzz.between import ACTS, MOVING_STATE
from tests.laws.fuzz.data import POOL
from tests.laws.fuzz.loop import Loop
from tests.laws.fuzz.models import BY_MICRO_BATCH
from tests.laws.fuzz.scenario import Scenario, Window
from tests.laws.fuzz.trainer import Rows
from tests.laws.fuzz.ways import WAYS, Way, trim_is_asked_for
from tests.laws.fuzz.whole import Whole
from tests.laws.standing import differences, standing

# Of what a parameter has moved since the start: some hundred float64 additions per window; and of float32 ones.
RTOL = 1e-11
STATE = ("seen", "moment", "plain", "number")  # of a model that counts its samples
_CHAOS = 1e3  # a loop whose gradient has this norm may be anywhere by rounding
ATOL = 1e-13  # for parameters that move by rounding alone


@dataclass
class Outcome:
    """What one window did on one rank."""

    values: list[Tensor] = field(default_factory=list, repr=False)
    state: list[Tensor] = field(default_factory=list, repr=False)
    loss: float = 0.0
    norm: float = 0.0
    refused: str = ""
    changed: list[str] = field(default_factory=list)  # by a window that was refused


def rows_of(number: int, window: Window) -> list[list[Rows]]:
    """Deal samples to the micro-batches of each rank, other ones in every window."""
    place, dealt = 5 * number, []
    for sizes in window.sizes:
        mine = []
        for size in sizes:
            mine.append([(place + i) % POOL for i in range(size)])
            place += size
        dealt.append(mine)
    return dealt


def train(scenario: Scenario, rank: int = 0, way: Way | None = None) -> list[Outcome]:
    """Run the loop, up to the first window that is refused; ``way`` makes every update, if given."""
    loop, outcomes = Loop(scenario, rank), []
    for number, window in enumerate(scenario.windows):
        mine = rows_of(number, window)[rank]
        try:
            ACTS[window.before].loop(loop, mine)
        except GradgateError as error:
            outcome = Outcome(refused=f"{type(error).__name__}: {error}")
        else:
            outcome = _window(loop, window, mine, way or WAYS[window.way])
        outcomes.append(outcome)
        if outcome.refused:
            break
    return outcomes


def _window(loop: Loop, window: Window, mine: list[Rows], way: Way) -> Outcome:
    before = [standing(each) for each in loop.optimizers]
    loop.evaluates = window.within == "evaluate"
    try:
        if window.within == "frozen":
            with gg.frozen(loop.net.body):
                update = way(loop, mine)
        else:
            update = way(loop, mine)
    except GradgateError as error:
        after = [standing(each) for each in loop.optimizers]
        changed = [name for a, b in zip(before, after, strict=True) for name in differences(a, b)]
        if window.way == "resumed":  # in tensors of its own
            changed = [name for name in changed if name not in ("gradients", "identities", "dtypes")]
        return Outcome(refused=f"{type(error).__name__}: {error}", changed=changed)
    finally:
        loop.evaluates, loop.most = False, None
    state = loop.net.body.state() if hasattr(loop.net.body, "state") and _state_is_kept(loop.scenario) else []
    numbers = {} if update is None else {"loss": update.loss, "norm": float(update.grad_norm)}
    return Outcome(loop.values(), [each.clone() for each in state], **numbers)


def _state_is_kept(scenario: Scenario) -> bool:
    """Return whether the forward passes of all windows match the reference: no window was skipped or cut short."""
    return scenario.gate not in BY_MICRO_BATCH and not any(
        w.before in MOVING_STATE or w.way == "resumed" or w.within == "frozen" for w in scenario.windows
    )


def expected_refusals(
    scenario: Scenario, window: Window, whole: Whole, dealt: list[list[Rows]]
) -> dict[str, str]:
    """Return the errors that this window may raise, each with its reason."""
    allowed = {}
    if not all(whole.count([rows for rank in dealt for rows in rank])):
        allowed["CountError"] = "no items in the window"
    if any(loss.may_refuse for loss in whole.losses):
        allowed["CountError"] = "the count is left out, and the graph does not tell it"
    if any(loss.given == "left out" for loss in whole.losses):
        if scenario.layout == "images":
            allowed["CountError"] = "a factor without a graph may have been normalised"
        if whole.pool.words and "plan" in (window.way.split(",")[0], window.before):
            allowed["CountError"] = "of texts trimmed to one column a view does not tell what it merged"
    if scenario.model == "reentrant":
        allowed["GraphError"] = "reentrant checkpoints hide parameters"
    if window.before == "wrap again" and "views" in scenario.wrapper and scenario.clear != "none":
        allowed["GradientError"] = "a new wrapper puts tensors of its own in .grad"
    if "no memory" in window.way and not scenario.given_model:
        allowed["BudgetError"] = "without model= a replay cannot put back what the pass has changed"
    frozen = window.within == "frozen"
    trained = [p for p in whole.owned() if p.requires_grad]
    if frozen:
        inside = {id(p) for p in whole.net.body.parameters()}
        trained = [p for p in trained if id(p) not in inside]
    if all(p is whole.net.log_scales for p in trained):
        allowed["GraphError"] = "all that the loss reaches is frozen or not owned"
        allowed["CountError"] = "a loss without a graph does not tell its count"
        allowed["OptionError"] = "a plan needs a loss with a graph"
    if scenario.layout == "nested" and sum(map(sum, window.sizes)) == 2:
        allowed["OptionError"] = "two fields in a tuple look like the two samples of the batch"
    if (
        "plan" in (window.way.split(",")[0], window.before)
        and trim_is_asked_for(scenario)
        and not scenario.seed % 2
    ):
        allowed["OptionError"] = "a plan does not guess what may be trimmed"
    return allowed


def silent(scenario: Scenario) -> str:
    """Run a loop in which no split is exact; return what is wrong if nobody is told, or nothing."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        outcomes = train(scenario)
    if any(each.category is CoupledLossWarning for each in said):
        return ""
    refused = [outcome.refused for outcome in outcomes if outcome.refused]
    return f"nobody is told that the loop is {scenario.spoiled}: {refused or 'the window has stepped'}"


def judge(scenario: Scenario, found: Sequence[Sequence[Outcome]]) -> str:
    """Compare what each rank found with the truth; return what is wrong, or nothing."""
    whole = Whole(scenario)
    start = [p.detach().clone() for p in whole.net.parameters()]
    for number, window in enumerate(scenario.windows):
        dealt = rows_of(number, window)
        everything = [rows for rank in dealt for rows in rank]
        ACTS[window.before].whole(whole)
        allowed = expected_refusals(scenario, window, whole, dealt)
        outcomes = [rank[number] for rank in found]
        if any(outcome.refused.split(":")[0] in allowed for outcome in outcomes):
            allowed["RankError"] = "a rank without micro-batches hears of another's refusal"
        for rank, outcome in enumerate(outcomes):
            where = f"window {number}, rank {rank}: "
            if outcome.changed:
                return f"{where}refused after it had changed {outcome.changed}: {outcome.refused}"
            if outcome.refused and outcome.refused.split(":")[0] not in allowed:
                return f"{where}refused what is supported: {outcome.refused}"
        if any(outcome.refused for outcome in outcomes):
            return ""
        loss, norm = whole.window(everything, frozen=window.within == "frozen")
        if not norm < _CHAOS:
            return ""
        for rank, outcome in enumerate(outcomes):
            wrong = _differs(outcome, whole, start, loss, norm, RTOL)
            if wrong:
                return f"window {number}, rank {rank}: {wrong}"
    return ""


def _differs(
    outcome: Outcome, whole: Whole, start: list[Tensor], loss: float, norm: float, rtol: float
) -> str:
    named = dict(whole.net.named_parameters())
    for (name, true), value, first in zip(named.items(), outcome.values, start, strict=True):
        if name.endswith("moment"):  # part of the state
            continue
        moved = float((true - first).detach().abs().max())
        off = float((value.to(true.dtype) - true).detach().abs().max())
        if not off <= rtol * moved + ATOL * (1 if rtol == RTOL else 1e7):
            return f"{name} is off by {off / max(moved, 1e-300):.1e} of what it moved ({off:.1e})"
    for name, value, true in (("loss", outcome.loss, loss), ("norm", outcome.norm, norm)):
        if not abs(value - true) <= rtol * max(abs(true), 1.0):
            return f"update.{name} is {value}, true is {true}"
    if outcome.state:
        for name, value, true in zip(STATE, outcome.state, whole.net.body.state(), strict=True):
            if not torch.allclose(value.double(), true.double(), rtol=1e-9):
                return f"{name} of the body is {value.tolist()}, true is {true.tolist()}"
    return ""
