"""A replay puts back what a forward pass changes: all that is reached from the model, and random state."""

import copy
import random
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import BudgetError
from gradgate.forward_state import LARGE_BYTES, ForwardState, checksum
from tests.accumulation.test_replay import Room
from tests.laws.standing import differences, standing
from tests.tensors import on_device, randn


@dataclass
class Statistics:
    seen: int = 0
    means: list[float] = field(default_factory=list)


class Restless(nn.Module):
    """Changes, in each forward pass, whatever a module can hold, and uses it."""

    def __init__(self) -> None:
        super().__init__()
        self.online, self.key = nn.Linear(3, 3), nn.Linear(3, 3).requires_grad_(False)
        self.teacher = [copy.deepcopy(self.online)]  # hidden from parameters()
        self.register_buffer("queue", torch.zeros(4, 3), persistent=False)
        self.norm = nn.BatchNorm1d(3).eval()
        self.center = torch.zeros(3)  # no buffer
        self.calls, self.scale = 0, 1.0
        self.history: list[Tensor] = []
        self.cache: dict[int, Tensor] = {}
        self.recent: deque[float] = deque(maxlen=3)
        self.sizes: set[int] = set()
        self.statistics, self.options = Statistics(), SimpleNamespace(steps=0)
        self.generator = torch.Generator().manual_seed(3)
        self.room = (1000, "nowhere")

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        with torch.no_grad():
            for key, online in zip(self.key.parameters(), self.online.parameters(), strict=True):
                key.data = key.data * 0.9 + online.data * 0.1  # as MoCo writes it: no version is counted
            for teacher, online in zip(self.teacher[0].parameters(), self.online.parameters(), strict=True):
                teacher.data.mul_(0.9).add_(0.1 * online.detach().data)  # as DINO does
            self.queue = torch.cat([self.queue[1:], x[:1].detach()])
            self.center.mul_(0.9).add_(0.1 * x.mean(0))
            self.norm.running_mean.add_(0.1)
        self.calls += 1
        self.scale = 0.9 * self.scale
        self.history.append(x.mean().detach())
        self.cache[self.calls] = x.sum().detach()
        self.recent.append(float(x.sum()))
        self.sizes.add(self.calls)
        self.statistics.seen += 1
        self.statistics.means.append(float(x.mean()))
        self.options.steps += 1
        if not hasattr(self, "late"):
            self.late = nn.Linear(3, 3).to(x).requires_grad_(False)
        noise = torch.rand(3, generator=self.generator).to(x) + random.random() + numpy.random.rand()
        h = self.norm(self.late(self.online(x)) * self.scale) + self.center + self.queue.mean(0) + noise
        h = h + sum(self.history) + sum(self.cache.values()) + sum(self.recent) + len(self.sizes) + self.calls
        target = self.key(x) + self.teacher[0](x) + self.statistics.seen + self.options.steps
        return Room.apply((h * target).square().mean(1), *self.room).mean(), len(x)


def state_of(model: nn.Module) -> dict[str, Any]:
    """All that the model has, as plain values."""
    left_out = set(vars(nn.Module())) | {"room", "teacher", "generator"}
    state: dict[str, Any] = {**model.state_dict(), "queue": model.queue, "modules": sorted(model._modules)}
    state |= {name: value for name, value in vars(model).items() if name not in left_out}
    state |= {f"teacher.{name}": value for name, value in model.teacher[0].state_dict().items()}
    return {**state, "generator": model.generator.get_state(), "recent": list(model.recent)}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return bool(one == other)


@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("failing", [0, 2])
def test_a_replay_leaves_no_trace_in_anything_that_the_model_reaches(where: str, failing: int) -> None:
    """Bit for bit what a window begun with the finer split would have made, in the first window and later."""
    batch = randn(12, 3)
    finished = []
    for retried in (True, False):
        torch.manual_seed(0), random.seed(0), numpy.random.seed(0)
        model = on_device(Restless())
        model.center = model.center.to(batch)
        model.teacher[0].to(batch)
        optimizer = torch.optim.Adam(model.online.parameters(), lr=0.1)
        accumulator = gg.Accumulator(optimizer, model=model)
        for number in range(failing + 2):
            model.room = (3, where) if retried and number == failing else (1000, "nowhere")
            window = [batch] if number < failing or (retried and number == failing) else batch.split(3)
            accumulator.step_window(model, window)
        drawn = torch.rand(1), random.random(), numpy.random.rand()
        finished.append((standing(optimizer), state_of(model), drawn))
    (one, states, drawn), (other, other_states, other_drawn) = finished
    assert differences(one, other, identities=False) == []
    assert [name for name in states if not same(states[name], other_states[name])] == []
    assert (same(drawn, other_drawn), states.keys()) == (True, other_states.keys())


# -- large tensors ----------------------------------------------------------------------------------


class Large(nn.Module):
    """A large frozen part that a forward pass changes on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 1)
        self.frozen = nn.Parameter(torch.ones(LARGE_BYTES // 4 + 3), requires_grad=False)
        self.room, self.moves = (1000, "nowhere"), False

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        if self.moves:
            self.frozen.data.mul_(0.9)
        return Room.apply(self.head(x) * self.frozen.mean(), *self.room).mean(), len(x)


def training() -> tuple[Large, gg.Accumulator]:
    torch.manual_seed(0)
    model = Large()
    return model, gg.Accumulator(torch.optim.SGD(model.head.parameters(), lr=0.1), model=model)


def copied(model: Large, accumulator: gg.Accumulator) -> bool:
    state = ForwardState(model.modules(), model.head.parameters(), accumulator._state.at_rest)
    return any(tensor is model.frozen for tensor, _ in state._copies)


def test_what_windows_change_is_copied_before_each_and_put_back() -> None:
    model, accumulator = training()
    model.moves, model.room = True, (2, "backward")
    accumulator.step(model, torch.ones(4, 3))
    assert copied(model, accumulator)
    accumulator.samples_that_fit = None
    accumulator.step(model, torch.ones(4, 3))
    assert model.frozen[0].item() == pytest.approx(0.9**4, rel=1e-6)  # float32


def test_what_changes_for_the_first_time_in_a_window_that_is_to_be_replayed_is_an_error() -> None:
    model, accumulator = training()
    accumulator.step(model, torch.ones(4, 3))
    before = model.head.weight.detach().clone()
    model.moves, model.room = True, (2, "forward")
    with pytest.raises(BudgetError, match=r"has changed Large\.frozen, which was not copied because"):
        accumulator.step(model, torch.ones(4, 3))
    assert torch.equal(model.head.weight, before)
    accumulator.samples_that_fit = None
    accumulator.step(model, torch.ones(4, 3))  # it is copied from now on
    assert model.frozen[0].item() == pytest.approx(0.9**3, rel=1e-6)  # float32


def test_what_changes_between_windows_is_no_trouble() -> None:
    """The other network of a GAN, which has an optimizer of its own."""
    model, accumulator = training()
    accumulator.step(model, torch.ones(4, 3))
    with torch.no_grad():
        model.frozen.mul_(0.5)
    assert not copied(model, accumulator)
    model.room = (2, "forward")
    assert accumulator.step(model, torch.ones(4, 3)).micro_batch_count == 2
    assert model.frozen[0] == 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_checksum_sees_any_change(dtype: torch.dtype) -> None:
    tensor = (torch.arange(3_000_001) % 2).to(dtype)
    known = checksum(tensor)
    for places in ([0], [1_500_000], [-1]):
        changed = tensor.clone()
        changed[places] = changed[places].logical_not().to(dtype)
        assert checksum(changed) != known
    swapped = tensor.clone()
    swapped[[1000, 1001]] = tensor[[1001, 1000]]
    assert checksum(swapped) != known
    assert checksum(tensor.roll(2_000_000)) != known
    assert checksum(tensor.clone()) == known
    assert checksum(torch.cat([tensor[:1], tensor])[1:]) == known
