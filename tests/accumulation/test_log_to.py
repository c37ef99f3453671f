"""Updates written to TensorBoard, and read back from its files."""

import copy
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.tensorboard import SummaryWriter

import gradgate as gg
from tests.accumulation.one_weight import one_weight, update_by
from tests.tensors import DEVICE

SIZES = (8, 8, 3)
SINGLE = (
    2e-7  # TensorBoard keeps float32: half a unit in the last place, relative, and some for float32 itself
)


class Recording:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.scalars: dict[str, list[tuple[int, float]]] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.setdefault(tag.removeprefix("gradgate/"), []).append((step, value))

    def values(self, tag: str) -> list[float]:
        return [value for _, value in self.scalars[tag]]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"first": nn.Linear(6, 8), "second": nn.Linear(8, 8)})
        self.head = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body["second"](self.body["first"](x).tanh())) * self.scale


def data(updates: int) -> list[tuple[Tensor, Tensor]]:
    x = torch.randn(updates * sum(SIZES), 6, dtype=torch.float64, device=DEVICE)
    return list(zip(x.split(sum(SIZES)), x[:, :3].argmax(1).split(sum(SIZES)), strict=True))


def train(model: nn.Module, batches: list[tuple[Tensor, Tensor]], accumulator: gg.Accumulator) -> None:
    for x, y in batches:
        with accumulator.update() as update:
            for part_x, part_y in update.micro_batches(
                list(zip(x.split(SIZES), y.split(SIZES), strict=True))
            ):
                update.backward(F.cross_entropy(model(part_x), part_y), count=len(part_y))


def norm_of(gradients: dict[str, Tensor], start: str = "") -> float:
    return float(torch.cat([g.flatten() for name, g in gradients.items() if name.startswith(start)]).norm())


def test_what_tensorboard_shows_is_what_the_whole_batch_gives(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Net().double().to(DEVICE)
    batches, rate, limit = data(6), 0.5, 0.45
    truth = copy.deepcopy(model)
    expected: dict[str, list[float]] = {}
    for x, y in batches:  # plain, uncut, float64
        loss = F.cross_entropy(truth(x), y)
        found = torch.autograd.grad(loss, truth.parameters())
        gradients = dict(zip(dict(truth.named_parameters()), found, strict=True))
        norm = norm_of(gradients)
        for tag, value in {
            "loss": loss.item(),
            "count": 19,
            "grad_norm": norm,
            "grad_norm/body": norm_of(gradients, "body"),
            "grad_norm/head": norm_of(gradients, "head"),
            "grad_norm/Net": norm_of(gradients, "scale"),
            "clipped": norm > limit,
            "skipped": 0,
            "lr": rate,
        }.items():
            expected.setdefault(f"gradgate/{tag}", []).append(float(value))
        with torch.no_grad():
            for parameter, gradient in zip(truth.parameters(), gradients.values(), strict=True):
                parameter -= rate * min(1.0, limit / (norm + 1e-6)) * gradient
        rate *= 0.5
    assert len(set(expected["gradgate/clipped"])) == 2  # some were clipped, some not

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    accumulator = gg.Accumulator(optimizer, clip_norm=limit, scheduler=schedule)
    with SummaryWriter(str(tmp_path)) as writer, gg.log_to(writer, accumulator, model):
        train(model, batches, accumulator)

    events = EventAccumulator(str(tmp_path)).Reload()
    assert set(events.Tags()["scalars"]) == set(expected)
    for tag, values in expected.items():
        scalars = events.Scalars(tag)
        assert [scalar.step for scalar in scalars] == [1, 2, 3, 4, 5, 6]
        assert [scalar.value for scalar in scalars] == pytest.approx(values, rel=SINGLE)


def test_the_parameters_are_those_of_a_training_that_nobody_logs() -> None:
    weights = []
    for logged in (False, True):
        torch.manual_seed(0)
        model = Net().double().to(DEVICE)
        batches = data(4)
        accumulator = gg.Accumulator(torch.optim.AdamW(model.parameters(), lr=0.1), clip_value=0.01)
        if logged:
            gg.log_to(Recording(), accumulator, model, depth=2)
        train(model, batches, accumulator)
        weights.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    assert torch.equal(*weights)


def test_parts_are_as_deep_as_asked_and_hold_what_is_owned_only() -> None:
    model = Net().double().to(DEVICE)
    trained = [*model.body.parameters(), model.head.bias]
    accumulator = gg.Accumulator(torch.optim.SGD(trained, lr=0.1))
    writer = Recording()
    gg.log_to(writer, accumulator, model, depth=2)
    train(model, data(1), accumulator)
    norms = {tag: value for tag, ((_, value),) in writer.scalars.items() if tag.startswith("grad_norm/")}
    assert set(norms) == {"grad_norm/body.first", "grad_norm/body.second", "grad_norm/head"}
    assert sum(norm**2 for norm in norms.values()) ** 0.5 == pytest.approx(writer.values("grad_norm")[0])


def test_it_writes_every_so_many_updates_and_counts_those_between() -> None:
    weight, _, accumulator = one_weight(clip_norm=5.0, nonfinite="skip")
    writer = Recording()
    gg.log_to(writer, accumulator, every=3, step=10)
    for gradient in (1.0, 9.0, 2.0, 3.0, 8.0, float("inf"), 7.0, 1.0):
        update_by(accumulator, weight, [(gradient, 2)])
    # Written are updates 12, 15 and 18: the second, the fifth and the eighth.
    assert writer.scalars["grad_norm"] == [(12, 9.0), (15, 8.0), (18, 1.0)]
    assert writer.values("clipped") == pytest.approx([1 / 2, 1 / 3, 1 / 3])
    assert writer.values("skipped") == [0, 0, 1]


def test_a_skipped_update_is_written_without_norms_of_parts() -> None:
    model = nn.Linear(1, 1, bias=False, dtype=torch.float64, device=DEVICE)
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.5), nonfinite="skip")
    writer = Recording()
    gg.log_to(writer, accumulator, model)
    for factor in (float("inf"), 1.0):
        update_by(accumulator, model.weight.sum(), [(factor, 1)])
    assert writer.scalars["skipped"] == [(1, 1), (2, 1)]
    assert writer.scalars["lr"] == [(1, 0.5), (2, 0.5)]
    assert writer.scalars["grad_norm/Linear"] == [(2, 1.0)]
    assert "clipped" not in writer.scalars


@pytest.mark.parametrize(("gradient", "clipped"), [(0.4, 0.0), (-0.6, 1.0)])
def test_a_clip_of_values_counts_where_some_value_was_beyond(gradient: float, clipped: float) -> None:
    weight, _, accumulator = one_weight(clip_value=0.5)
    writer = Recording()
    gg.log_to(writer, accumulator)
    update_by(accumulator, weight, [(gradient, 1), (gradient, 3)])
    assert writer.values("clipped") == [clipped]
    assert writer.values("grad_norm") == pytest.approx([abs(gradient)])


def test_several_groups_have_several_rates() -> None:
    model = Net().double().to(DEVICE)
    groups = [
        {"params": model.body.parameters(), "lr": torch.tensor(0.1)},
        {"params": model.head.parameters()},
    ]
    accumulator = gg.Accumulator(torch.optim.SGD(groups, lr=0.2))
    writer = Recording()
    gg.log_to(writer, accumulator)
    train(model, data(1), accumulator)
    assert writer.values("lr/0") + writer.values("lr/1") == pytest.approx([0.1, 0.2])


def test_nothing_is_read_from_the_device_in_updates_that_are_not_written() -> None:
    model = nn.Linear(3, 2, device="meta")  # whose numbers nobody can read
    for clip in ({"clip_norm": 1.0}, {"clip_value": 1.0}):
        accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), nonfinite="step", **clip)
        logging = gg.log_to(Recording(), accumulator, model, every=2)
        with accumulator.update() as update:
            update.backward(model(torch.ones(4, 3, device="meta")).mean(), count=4)
        with pytest.raises((RuntimeError, NotImplementedError)), accumulator.update() as update:
            update.backward(model(torch.ones(4, 3, device="meta")).mean(), count=4)
        logging.remove()


def test_it_ends_when_it_is_removed_or_its_block_ends() -> None:
    weight, _, accumulator = one_weight()
    writer = Recording()
    logging = gg.log_to(writer, accumulator)
    with gg.log_to(writer, accumulator, step=100):
        update_by(accumulator, weight, [(1.0, 1)])
    update_by(accumulator, weight, [(1.0, 1)])
    logging.remove()
    update_by(accumulator, weight, [(1.0, 1)])
    assert [step for step, _ in writer.scalars["loss"]] == [1, 101, 2]
    assert not accumulator._state.gradient_hooks
    assert not accumulator._state.update_hooks
