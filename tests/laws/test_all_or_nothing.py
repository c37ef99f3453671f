"""Law 5. Stop an update anywhere: all that it would change is as before it, or as after it."""

import inspect
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import ExponentialLR

import gradgate as gg
from gradgate.errors import GradgateError, NonfiniteError, TornStepError
from tests.accumulation.one_weight import StopError, stopped_by
from tests.laws.standing import Standing, differences, standing
from tests.tensors import DEVICE, DTYPE, randn

# -- what is stopped, where, and by what ------------------------------------------------------------

IN_MICRO_BATCH = ["forward", "hook", "backward", "between"]
IN_STEP = ["half a step", "a whole step"]
RAISED = [StopError, torch.OutOfMemoryError, KeyboardInterrupt, SystemExit]
SIGNALS = [signal.SIGINT, signal.SIGTERM]
SIZES = (2, 1, 3)


class TerminatedError(BaseException):
    """What a handler of SIGTERM raises in many training scripts."""


@dataclass
class Fuse:
    """Where and how to stop; lit for one update, then out."""

    place: str = "nowhere"
    cause: Any = StopError
    micro_batch: int = 0
    lit: bool = False

    def __call__(self, place: str, micro_batch: int = 0) -> None:
        if (
            not self.lit
            or place != self.place
            or (place in IN_MICRO_BATCH and micro_batch != self.micro_batch)
        ):
            return
        self.lit = False
        if self.is_signal:
            os.kill(os.getpid(), self.cause)
        else:
            raise self.cause("stopped")

    @property
    def is_signal(self) -> bool:
        return isinstance(self.cause, signal.Signals)

    @property
    def raises(self) -> type[BaseException]:
        return {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: TerminatedError}.get(self.cause, self.cause)

    @property
    def leaves_the_update_made(self) -> bool:
        """A signal during the step waits for its end; a scheduler comes when there is no way back."""
        return self.place == "scheduler" or (self.place in IN_STEP and self.is_signal)


class Fused(torch.autograd.Function):
    """The identity; its backward is where the fuse may stop it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, fuse: Fuse, micro_batch: int) -> Tensor:
        ctx.note = fuse, micro_batch
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        fuse, micro_batch = ctx.note
        fuse("backward", micro_batch)
        return gradient, None, None


def stoppable(kind: type, fuse: Fuse) -> type:
    """An optimizer that steps one group after the other, and may be stopped between them."""

    class Stoppable(kind):  # type: ignore[misc]
        def step(self, closure: None = None) -> None:
            groups = self.param_groups
            try:
                for group in groups:
                    self.param_groups = [group]
                    super().step()
                    fuse("half a step")
            finally:
                self.param_groups = groups
            fuse("a whole step")

    return Stoppable


@dataclass
class Case:
    kind: Callable[..., Any] = SGD
    clear: Any = "none"
    scaled: bool = False
    undo_step: bool = False
    fuse: Fuse = field(default_factory=Fuse)


class World:
    """A model, an optimizer with two groups, a scheduler and perhaps a scaler: a training run."""

    def __init__(self, case: Case, **options: Any) -> None:
        torch.manual_seed(0)
        self.fuse, self.scaled = case.fuse, case.scaled
        dtype = torch.float32 if case.scaled else DTYPE
        self.first, self.last = (nn.Linear(3, 3, device=DEVICE, dtype=dtype) for _ in range(2))
        self.micro_batches = [randn(size, 3, dtype=dtype) for size in SIZES]
        groups = [{"params": list(module.parameters())} for module in (self.first, self.last)]
        momentum = {"momentum": 0.9} if case.kind is SGD else {}
        self.optimizer = stoppable(case.kind, case.fuse)(groups, lr=0.1, **momentum)
        self.scheduler = ExponentialLR(self.optimizer, 0.5)
        self.scaler = torch.amp.GradScaler(DEVICE.type, init_scale=2.0**8) if case.scaled else None
        self.accumulator = gg.Accumulator(
            self.optimizer,
            clip_norm=0.5,
            scheduler=Stoppers(self.scheduler, case.fuse),
            scaler=self.scaler,
            clear=case.clear,
            undo_step=case.undo_step,
            **options,
        )

    def loss(self, number: int) -> Tensor:
        with torch.autocast(DEVICE.type, torch.float16, enabled=self.scaled):
            hidden = self.first(self.micro_batches[number])
            self.fuse("forward", number)
            hidden.register_hook(lambda _: self.fuse("hook", number))
            out = self.last(Fused.apply(hidden, self.fuse, number))
        return (out.float() if self.scaled else out).pow(2).mean()

    def standing(self) -> Standing:
        return standing(self.optimizer, self.scheduler, self.scaler)


@dataclass
class Stoppers:
    """A scheduler that may be stopped after its step."""

    scheduler: ExponentialLR
    fuse: Fuse

    def step(self) -> None:
        self.scheduler.step()
        self.fuse("scheduler")


@contextmanager
def handlers() -> Iterator[None]:
    """SIGTERM raises, as it does in many training scripts; SIGINT is as Python has it."""

    def terminated(*_: Any) -> None:
        raise TerminatedError

    usual = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, usual)


Run = Callable[[World], None]


def in_a_block(world: World) -> None:
    with world.accumulator.update() as update:
        for number in update.micro_batches(range(len(SIZES))):
            update.backward(world.loss(number))
            world.fuse("between", number)
        world.fuse("end of block")


def in_one_call(world: World) -> None:
    world.accumulator.step_window(world.loss, range(len(SIZES)))


def plain_loop(world: World) -> None:
    """Whatever stops it leaves what was there at that moment."""
    for number in range(len(SIZES)):
        world.loss(number).backward()
        world.fuse("between", number)
    step_and_clear(world)


def careless_block(world: World) -> None:
    """A context manager that steps however its block is left."""

    @contextmanager
    def update() -> Iterator[None]:
        try:
            yield
        finally:
            step_and_clear(world)

    with update():
        for number in range(len(SIZES)):
            world.loss(number).backward()
            world.fuse("between", number)


def step_and_clear(world: World) -> None:
    world.optimizer.step()
    world.scheduler.step()
    world.optimizer.zero_grad()


# -- the law ----------------------------------------------------------------------------------------


def assert_all_or_nothing(run: Run, case: Case, updates_before: int = 0) -> None:
    """Stop an update; compare with before or after; then go on, and arrive where an unstopped run arrives."""
    stopped, unstopped = World(case), World(replace(case, fuse=Fuse()))
    for world in (stopped, unstopped):
        for _ in range(updates_before):
            run(world)
    before = stopped.standing()
    case.fuse.lit = True
    with handlers(), stopped_by(case.fuse.raises):
        run(stopped)
    if case.fuse.leaves_the_update_made:
        run(unstopped)
        found = differences(stopped.standing(), unstopped.standing(), identities=False)
        assert not found, f"not as after it: {found}"
    else:
        found = differences(stopped.standing(), before)
        assert not found, f"not as before it: {found}"
    for world in (stopped, unstopped):
        run(world)
    found = differences(stopped.standing(), unstopped.standing(), identities=False)
    assert not found, f"the next update differs: {found}"


def fuses(places: list[str], causes: list[Any]) -> st.SearchStrategy[Fuse]:
    return st.builds(Fuse, st.sampled_from(places), st.sampled_from(causes), st.integers(0, len(SIZES) - 1))


def cases(fuses: st.SearchStrategy[Fuse], *, undo_step: bool = False) -> st.SearchStrategy[Case]:
    return st.builds(
        Case,
        kind=st.sampled_from([SGD, Adam, AdamW]),
        clear=st.sampled_from(["none", "zero", gg.decay(0.5)]),
        scaled=st.booleans(),
        undo_step=st.just(undo_step),
        fuse=fuses,
    )


ANYWHERE = (
    fuses([*IN_MICRO_BATCH, "end of block"], RAISED + SIGNALS)
    | fuses(IN_STEP, SIGNALS)
    | fuses(["scheduler"], RAISED + SIGNALS)
)


@settings(max_examples=80)
@given(case=cases(ANYWHERE), updates_before=st.integers(0, 1))
def test_stopped_anywhere_an_update_is_made_or_not_made(case: Case, updates_before: int) -> None:
    assert_all_or_nothing(in_a_block, case, updates_before)


@settings(max_examples=20)
@given(case=cases(fuses(["forward", "hook", "backward"], [StopError, KeyboardInterrupt, *SIGNALS])))
def test_so_is_one_that_is_made_in_one_call(case: Case) -> None:
    assert_all_or_nothing(in_one_call, case, 1)


@settings(max_examples=30)
@given(case=cases(fuses(IN_STEP, RAISED), undo_step=True), updates_before=st.integers(0, 1))
def test_a_step_that_raises_half_way_is_undone_if_asked(case: Case, updates_before: int) -> None:
    assert_all_or_nothing(in_a_block, case, updates_before)


@pytest.mark.parametrize(
    ("run", "fuse", "complaint"),
    [
        (plain_loop, Fuse("between"), r"not as before it: \['gradients', 'identities'\]"),
        (careless_block, Fuse("between"), "not as before it: .*'parameters'.*'optimizer'"),
        (plain_loop, Fuse("half a step"), "not as before it: .*'parameters'.*'optimizer'"),
        (plain_loop, Fuse("a whole step", signal.SIGTERM), "not as after it: .*'gradients'.*'scheduler'"),
    ],
)
def test_the_law_rejects(run: Run, fuse: Fuse, complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert_all_or_nothing(run, Case(fuse=fuse))


# -- what it says of the steps that it cannot undo, and of gradients that are not finite ------------------


@settings(max_examples=15)
@given(case=cases(fuses(IN_STEP, RAISED)))
def test_a_step_that_raises_half_way_is_said_to_be_torn_and_the_rest_is_as_before(case: Case) -> None:
    world, unstopped = World(case), World(replace(case, fuse=Fuse()))
    for one in (world, unstopped):
        in_a_block(one)
    before = world.standing()
    case.fuse.lit = True
    with stopped_by(TornStepError):
        in_a_block(world)
    assert set(differences(world.standing(), before)) == {"parameters", "optimizer"}
    # Put back from a checkpoint, as the message says, the run goes on.
    with torch.no_grad():
        for group in world.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.copy_(before.parameters.pop(0))
    world.optimizer.load_state_dict(before.optimizer)
    for one in (world, unstopped):
        in_a_block(one)
    assert not differences(world.standing(), unstopped.standing(), identities=False)


@settings(max_examples=20)
@given(
    case=cases(st.just(Fuse())), number=st.integers(0, len(SIZES) - 1), value=st.sampled_from(["inf", "nan"])
)
def test_a_gradient_that_is_not_finite_steps_nothing(case: Case, number: int, value: str) -> None:
    world, unstopped = (World(case, nonfinite="raise") for _ in range(2))
    for one in (world, unstopped):
        in_a_block(one)
    before = world.standing()
    usual = world.micro_batches[number]
    world.micro_batches[number] = usual * float(value)
    with stopped_by(NonfiniteError):
        in_a_block(world)
    assert not differences(world.standing(), before)
    world.micro_batches[number] = usual
    for one in (world, unstopped):
        in_a_block(one)
    assert not differences(world.standing(), unstopped.standing(), identities=False)


@pytest.mark.parametrize("clear", ["none", "zero", gg.decay(0.5)])
def test_a_skipped_update_changes_nothing_and_raises_nothing(clear: Any) -> None:
    world = World(Case(Adam, clear), nonfinite="skip")
    in_a_block(world)
    before = world.standing()
    world.micro_batches[1] *= float("nan")
    in_a_block(world)
    assert not differences(world.standing(), before)


def test_a_scheduler_that_raises_at_once_leaves_parameters_and_gradients_as_after() -> None:
    world, unstopped = World(Case(Adam)), World(Case(Adam))
    world.scheduler.step = None  # calling it raises
    with stopped_by(TypeError):
        in_a_block(world)
    in_a_block(unstopped)
    assert set(differences(world.standing(), unstopped.standing())) <= {"scheduler", "optimizer"}
    assert world.optimizer.state_dict()["param_groups"][0]["lr"] == 0.1


# -- a signal at any line ---------------------------------------------------------------------------

ACCUMULATION = str(Path(gg.accumulation.__file__).parent)
GRAD_MODE = str(inspect.getsourcefile(torch.no_grad))
Line = tuple[str, int]


@dataclass
class Tracer:
    """Notes the lines of gradgate and no_grad that are run; at the first run of one of them, SIGINT arrives."""

    at: Line | None = None
    lines: list[Line] = field(default_factory=list)
    entry_of_exit: Line | None = None  # where Python itself lets a signal through, see bpo-29988

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith((ACCUMULATION, GRAD_MODE)):
            return None
        if event == "line":
            line = (Path(frame.f_code.co_filename).name, frame.f_lineno)
            if (line[0], frame.f_code.co_name, self.entry_of_exit) == ("_window.py", "__exit__", None):
                self.entry_of_exit = line
            if line == self.at:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
            self.lines.append(line)
        return self

    def watch(self, run: Run, world: World) -> None:
        usual = sys.gettrace()
        sys.settrace(self)
        try:
            run(world)
        finally:
            sys.settrace(usual)


def given_up(world: World) -> None:
    with suppress(StopError), world.accumulator.update() as update:
        update.backward(world.loss(0))
        raise StopError


def lines_of(run: Run, case: Case) -> list[Line]:
    world, tracer = World(case), Tracer()
    in_a_block(world)
    tracer.watch(run, world)
    lines = list(dict.fromkeys(tracer.lines))
    lines.remove(tracer.entry_of_exit)
    # All of the update's own life, and a sample of what it calls.
    return [
        line
        for number, line in enumerate(lines)
        if line[0] in ("_window.py", Path(GRAD_MODE).name) or number % 5 == 0
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "case"),
    [(in_a_block, Case(Adam, gg.decay(0.5))), (given_up, Case(SGD, "zero", scaled=True))],
    ids=["in a block, decay", "given up, scaled"],
)
def test_a_signal_at_any_line_of_an_update_finds_it_made_or_not_made(run: Run, case: Case) -> None:
    before, after, next_one = World(case), World(case), World(case)
    in_a_block(before)
    for world, updates in ((after, 2), (next_one, 3)):
        for _ in range(updates):
            in_a_block(world)
    wrong = []
    for line in lines_of(run, case):
        world = World(case)
        in_a_block(world)
        with suppress(KeyboardInterrupt):
            Tracer(line).watch(run, world)
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            wrong.append(f"{line}: the handler is not given back")
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if not torch.is_grad_enabled():
            wrong.append(f"{line}: gradients stay disabled")
            torch.set_grad_enabled(True)
        made = not differences(world.standing(), after.standing(), identities=False)
        if not made and differences(world.standing(), before.standing(), identities=False):
            wrong.append(f"{line}: half made")
            continue
        try:
            for _ in range(1 if made else 2):
                in_a_block(world)
        except GradgateError as error:
            wrong.append(f"{line}: {type(error).__name__} in the next update")
            continue
        if differences(world.standing(), next_one.standing(), identities=False):
            wrong.append(f"{line}: the next update differs")
    assert not wrong, "\n".join(wrong)
