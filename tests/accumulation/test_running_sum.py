"""The running sum stays at the size of a mean, whatever comes, and rounds nothing where nothing need be."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

import gradgate as gg

# private: the running sum keeps the size of a mean for any sequence of counts
from gradgate.accumulation._gradient_sums import GradientSums
from gradgate.accumulation._running_sum import RunningSum
from gradgate.errors import CountError
from tests.accumulation.one_weight import add, one_weight, update_by
from tests.messages import raises
from tests.reference import assert_same, parts, problem
from tests.tensors import RTOL, tensor

VALID = [4, 1, 3, 2, 4, 4, 2, 4]


class Passes(TorchDispatchMode):
    """Counts the passes that are made over gradients to multiply them."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += func._schema.name == "aten::_foreach_mul_"
        return func(*args, **(kwargs or {}))


def passes(counts: list[int], **options: object) -> int:
    weight, _, accumulator = one_weight(**options)
    with Passes() as counted:
        update_by(accumulator, weight, [(3.0, count) for count in counts])
    return counted.count


@pytest.mark.parametrize("number", [2, 3, 32])
@pytest.mark.parametrize("size", [1, 7, 24])
def test_equal_micro_batches_need_one_pass_over_the_gradients_to_divide(number: int, size: int) -> None:
    assert passes([size] * number) == 1
    assert passes([size]) == 0


def test_each_change_of_the_count_needs_one_more() -> None:
    assert passes([7, 7, 7, 2]) == 2
    assert passes([7, 2, 7]) == 3
    assert passes([0, 7, 0, 7]) == 1


def test_a_clip_that_bites_shares_the_last_pass() -> None:
    assert passes([7, 7], clip_norm=1e-3) == 1
    assert passes([7, 2], clip_norm=1e-3) == 2


def test_a_window_of_one_is_bit_identical_to_a_plain_step() -> None:
    ours, theirs = problem(VALID), problem(VALID)
    our_optimizer, their_optimizer = (
        SGD(task.model.parameters(), lr=0.1, momentum=0.9) for task in (ours, theirs)
    )
    accumulator = gg.Accumulator(our_optimizer)
    for _ in range(3):
        with accumulator.update() as update:
            update.backward(ours.loss_mean(ours.x, ours.y))
        their_optimizer.zero_grad()
        theirs.loss_mean(theirs.x, theirs.y).backward()
        their_optimizer.step()
    assert all(map(torch.equal, ours.model.parameters(), theirs.model.parameters()))


@pytest.mark.parametrize("number", [2, 4, 8])
def test_equal_micro_batches_are_bit_identical_to_a_loop_that_divides_by_their_number(number: int) -> None:
    ours, theirs = problem([4] * 8), problem([4] * 8)
    cut = [8 // number] * number
    with gg.Accumulator(SGD(ours.model.parameters(), lr=0.1)).update() as update:
        for x, y in update.micro_batches(parts(ours, cut)):
            update.backward(ours.loss_mean(x, y))
    optimizer = SGD(theirs.model.parameters(), lr=0.1)
    for x, y in parts(theirs, cut):
        (theirs.loss_mean(x, y) / number).backward()
    optimizer.step()
    assert all(map(torch.equal, ours.model.parameters(), theirs.model.parameters()))


# -- half precision: the sum has to keep its size, for there is no room --------------------------------------

TOKENS = 1_000_000


def half_weight(**options: object) -> tuple[nn.Parameter, gg.Accumulator]:
    """A half weight whose sums are half too: nothing but their size can save them."""
    weight = nn.Parameter(torch.zeros((), dtype=torch.float16))
    return weight, gg.Accumulator(SGD([weight], lr=1.0), accumulate_dtype=torch.float16, **options)  # type: ignore[arg-type]


def in_half(counts: list[float], *, known: bool = True) -> tuple[float, float]:
    """Average over ``counts`` a gradient of 1.5, in float16; the largest sum on the way, and the mean."""
    weight, accumulator = half_weight()
    largest = 0.0
    with accumulator.update() as update:
        for count in update.micro_batches(counts if known else iter(counts)):
            update.backward((weight * 1.5).float(), count=count)
            largest = max(largest, abs(float(weight.grad)))
    return largest, -weight.item()


@pytest.mark.parametrize(
    "counts",
    [
        [TOKENS // 8] * 8,
        [1] + [TOKENS // 8] * 8,
        [1, TOKENS],
        [TOKENS, 1, 1],
        [TOKENS / 7, 1, 3, TOKENS / 2],
    ],
    ids=["8 equal", "the first tiny", "two, the first tiny", "the first huge", "uneven"],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_window_of_a_million_tokens_neither_overflows_nor_vanishes_in_half(
    counts: list[float], known: bool
) -> None:
    largest, mean = in_half(counts, known=known)
    assert largest < 16 * 1.5 * 1.01  # the headroom of float16
    assert mean == pytest.approx(1.5, rel=len(counts) * 2**-11)  # each addition rounds once


@pytest.mark.parametrize("known", [True, False])
def test_nor_do_a_thousand_micro_batches_of_a_half_model(known: bool) -> None:
    weight = nn.Parameter(torch.zeros((), dtype=torch.float16))
    window = [(1.5, TOKENS // 1000)] * 1000
    with gg.Accumulator(SGD([weight], lr=1.0)).update() as update:
        for gradient, count in update.micro_batches(window if known else iter(window)):
            update.backward(weight * gradient, count=count)
    assert weight.item() == -1.5


def test_a_sum_without_units_would_overflow_there() -> None:
    """So that the test above can fail: a million tokens summed as such."""
    total = torch.zeros((), dtype=torch.float16)
    for _ in range(8):
        total += torch.tensor(1.5).half() * (TOKENS // 8)
    assert total.isinf()


def test_a_loss_scale_that_a_half_loss_cannot_hold_is_halved_as_by_any_scaler() -> None:
    """65536 is more than float16 holds."""
    weight = nn.Parameter(torch.zeros((), dtype=torch.float16))
    scaler = torch.amp.GradScaler("cpu")
    accumulator = gg.Accumulator(SGD([weight], lr=1.0), scaler=scaler)
    stepped = []
    for _ in range(4):
        update = update_by(accumulator, weight, [(1.0, TOKENS), (3.0, TOKENS)])
        stepped.append(update.stepped)
        if update.stepped:
            break
    assert not stepped[0]
    assert stepped[-1]
    assert weight.item() == -2.0


def test_hundreds_of_micro_batches_of_unknown_number_are_as_exact_as_known_ones() -> None:
    counts = [1 + (7 * i) % 23 for i in range(300)]
    window = [((i % 11) - 5.0, count) for i, count in enumerate(counts)]
    expected = sum(gradient * count for gradient, count in window) / sum(counts)
    for source in (window, iter(window)):
        weight, _, accumulator = one_weight()
        update_by(accumulator, weight, source)
        assert_same([weight.detach()], [tensor(-expected)])


@settings(max_examples=50)
@given(
    counts=st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=40), headroom=st.sampled_from([16.0, 2.0**32])
)
def test_the_sum_never_grows_beyond_its_headroom(counts: list[float], headroom: float) -> None:
    running, size = RunningSum("loss", lambda: headroom), 0.0
    for count in counts:
        loss = tensor(1.0)
        factor, weight = map(float, running.prepare(loss, count, "mean"))
        size *= factor
        assert 0 < weight <= 1
        assert weight == 1 or running.known + count > headroom * count
        size += weight
        running.record(loss, count, "mean")
        assert size <= headroom * (1 + 1e-9)
    assert size * running.factor(running.total_count()) == pytest.approx(1.0)


@pytest.mark.parametrize("headroom", [16.0, 2.0**32])
def test_sums_of_items_stay_in_one_unit(headroom: float) -> None:
    running, factors = RunningSum("loss", lambda: headroom), []
    for count in (3, 5, 1):
        factors.append(running.prepare(tensor(1.0), count, "sum")[0])
        running.record(tensor(1.0), count, "sum")
    assert factors == [1.0] * 3


def test_the_losses_and_counts_are_there_for_logging() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for gradient, count in update.micro_batches([(2.0, 3), (6.0, 1), (9.0, 0)]):
            update.backward(weight * gradient + gradient, count=count, name="a")
            update.backward((weight + 1) * count, count=count, reduction="sum", name="b")
        assert update.loss == 3.0 + 1.0
    assert update.losses == {"a": gg.Tally(12.0, 4), "b": gg.Tally(4.0, 4)}
    assert (update.loss, update.count, update.micro_batch_count) == (4.0, 4, 3)


def test_the_micro_batches_after_a_resume_enter_with_the_same_weights() -> None:
    running = RunningSum("loss", lambda: 16.0)
    for count in (3, 0, 8):
        running.prepare(tensor(1.0), count or 1, "mean")
        running.record(tensor(2.0), count, "mean")
    saved = running.state_dict()
    again = RunningSum.from_state(saved, lambda: 16.0)
    assert again.state_dict() == saved
    assert again.prepare(tensor(1.0), 7, "mean") == running.prepare(tensor(1.0), 7, "mean")
    assert again.unit == running.unit


def test_counts_that_were_on_a_device_are_still_counted_after_a_resume() -> None:
    running = RunningSum("loss")
    for count in (tensor(3), 2):
        running.record(tensor(2.0), count, "mean")
    assert (
        RunningSum.from_state(running.state_dict(), lambda: 16.0).total_count() == running.total_count() == 5
    )


def test_a_generators_window_of_two_named_losses_divides_each_by_its_own_count() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for a, b in update.micro_batches(iter([(1, 4), (3, 0)])):
            update.backward(weight * 2.0, count=a, name="a")
            update.backward(weight * 10.0, count=b, name="b")
        add_nothing = list(update.losses)
    assert add_nothing == ["a", "b"]
    assert weight.item() == -12.0


def test_losses_without_names_are_told_apart_by_their_order() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for _ in update.micro_batches([0, 1]):
            update.backward(weight * 2.0, count=1)
            update.backward(weight * 4.0, count=3)
    assert list(update.losses) == ["loss", "loss 2"]
    assert weight.item() == -6.0
    with accumulator.update() as update:
        add(update, weight, [(1.0, 1)])
    assert list(update.losses) == ["loss"]


# -- counts that lie on a device, where nobody may wait for them ------------------------------------------


@pytest.fixture
def _on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every count goes the way of one that lies on a GPU: as a tensor that is not read before the end."""
    add = GradientSums.add

    def with_tensor(self: GradientSums, name: str, loss: torch.Tensor, count: object, *rest: Any) -> None:
        add(self, name, loss, torch.as_tensor(count), *rest)

    monkeypatch.setattr(GradientSums, "add", with_tensor)


@pytest.mark.usefixtures("_on_a_device")
@pytest.mark.parametrize(
    "counts", [[3, 1, 4], [1, 1000, 7], [5], [2, 2, 2, 2], [7, 0, 2], [0, 3, 1], [0.5, 2.25]], ids=str
)
@pytest.mark.parametrize("known", [True, False])
def test_counts_on_a_device_give_the_same_mean(counts: list[float], known: bool) -> None:
    weight, _, accumulator = one_weight()
    window = [(float(number), count) for number, count in enumerate(counts, 1)]
    update = update_by(accumulator, weight, window if known else iter(window))
    expected = sum(gradient * count for gradient, count in window) / sum(counts)
    assert weight.item() == pytest.approx(-expected, rel=max(RTOL, 1e-6))  # weights are float32 there
    assert update.count == sum(counts)
    assert update.grad_norm == pytest.approx(expected, rel=1e-6)


@pytest.mark.usefixtures("_on_a_device")
def test_a_window_of_zeros_on_a_device_is_an_error_at_the_end() -> None:
    weight, _, accumulator = one_weight()
    with raises(CountError, "no items"):
        update_by(accumulator, weight, [(1.0, 0), (2.0, 0)])
    assert (weight.item(), weight.grad) == (0.0, None)


@pytest.mark.usefixtures("_on_a_device")
def test_counts_on_a_device_are_saved_as_numbers() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        add(update, weight, [(1.0, 3), (5.0, 1)])
        (saved,) = accumulator.state_dict()["window"]["sums"]
    assert saved["counts"] == [3, 1]
    assert update.losses == {"loss": gg.Tally(0.0, 4)}


@pytest.mark.usefixtures("_on_a_device")
def test_nothing_is_read_before_the_block_ends() -> None:
    class Reads(TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            Reads.seen += func is torch.ops.aten._local_scalar_dense.default
            return func(*args, **(kwargs or {}))

    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for gradient, count in update.micro_batches([(1.0, torch.tensor(3.0)), (5.0, torch.tensor(1.0))]):
            loss, running = weight * gradient, RunningSum("loss")
            with Reads():
                running.prepare(loss, count, "mean")
                running.prepare(loss, count, "mean")
            update.backward(loss, count=count)
    assert Reads.seen == 0
    assert weight.item() == -2.0
