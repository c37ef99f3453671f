"""A gate that isn't linear sees the weight of its own pass: compiled, in another thread, and in a nested pass."""

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.amp import GradScaler

import gradgate as gg
from tests.accumulation.one_weight import one_weight
from tests.tensors import tensor

pytestmark = pytest.mark.filterwarnings("ignore:backward. the graph holds gg.clip_gradient")

WINDOW = [[1.0, 2.0], [3.0], [4.0, 5.0, 6.0]]
LIMIT = 0.75  # clips the mean of each micro-batch, so that the mean over all items is the limit, too


def clipped_mean(weight: Tensor, x: Tensor) -> Tensor:
    return (gg.clip_gradient(weight, max_value=LIMIT) * x).mean()


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "with a loss scale"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_gate_clips_as_in_a_plain_loop(scaled: bool) -> None:
    scaler = GradScaler("cpu", init_scale=1024.0) if scaled else None
    weight, _, accumulator = one_weight(scaler=scaler)
    mean = torch.compile(clipped_mean, backend="aot_eager", dynamic=True)
    with accumulator.update() as update:
        for items in update.micro_batches(WINDOW):
            update.backward(mean(weight, tensor(items)), count=len(items))
    assert weight.item() == pytest.approx(-LIMIT)


def test_a_pass_in_another_thread_does_not_have_the_weight_of_this_one() -> None:
    other = torch.ones(2, requires_grad=True)

    def run_in_thread(_: Tensor) -> None:
        thread = threading.Thread(target=clip_ones, args=(other,))
        thread.start()
        thread.join()

    run_in_each_pass(run_in_thread)
    assert other.grad is not None
    assert other.grad.tolist() == [3.0, 3.0]


def test_a_pass_within_a_pass_does_not_have_its_weight() -> None:
    other = torch.ones(2, requires_grad=True)
    run_in_each_pass(lambda _: clip_ones(other))
    assert other.grad is not None
    assert other.grad.tolist() == [3.0, 3.0]


def clip_ones(x: Tensor) -> None:
    """Add a gradient of ones, which the gate leaves as it is, to ``.grad``."""
    with torch.enable_grad():
        gg.clip_gradient(x, max_value=1.0).sum().backward()


def run_in_each_pass(hook: Callable[[Tensor], None]) -> None:
    """Run an update, and a hook in each of its backward passes, whose weights are 1, 1/2 and 3/2."""
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for items in update.micro_batches(WINDOW):
            out = weight * tensor(items)
            out.register_hook(hook)
            update.backward(out.mean(), count=len(items))
