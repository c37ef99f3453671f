"""CUDA graphs write each gradient into the memory of the one before. An update does not add to that memory.

Sources: https://github.com/pytorch/pytorch/issues/96693 (``torch.compile(mode="reduce-overhead")``) and
https://github.com/pytorch/pytorch/issues/181723 (``torch.cuda.make_graphed_callables``).
"""

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.torch_compat import reuses_gradients

Loss = Callable[[Tensor], Tensor]


def graphed(weight: Tensor) -> Loss:
    """The mean of ``weight * x``, as a graphed callable computes it: its gradient is always in the same memory."""
    static = torch.zeros_like(weight)

    class Graphed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return (x * weight).mean()

        @staticmethod
        def backward(ctx: Any, *seeds: Tensor) -> tuple[None, Tensor]:
            (x,) = ctx.saved_tensors
            static.copy_(seeds[0] * x / x.numel())
            return None, static.detach()

    return lambda x: Graphed.apply(x, weight)  # type: ignore[no-untyped-call, no-any-return]


def stepped(loss_of: Callable[[Tensor], Loss], *, windows: int = 2, **options: Any) -> Tensor:
    """Return a weight after some updates by gradgate, each of micro-batches with 3, 3 and 5 items."""
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    accumulator = gg.Accumulator(torch.optim.SGD([weight], lr=1.0), **options)
    loss = loss_of(weight)
    for _ in range(windows):
        with accumulator.update() as update:
            for micro_batch, count in update.micro_batches([(1.0, 3), (2.0, 3), (7.0, 5)]):
                update.backward(loss(torch.arange(1.0, 5.0).double() * micro_batch), count=count)
    return weight.detach()


@pytest.fixture
def cuda_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for CUDA graphs, as a build of torch for CUDA does, in a process that has not compiled anything."""
    monkeypatch.delitem(sys.modules, "torch._inductor.cudagraph_trees", raising=False)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(reuses_gradients, "use", reuses_gradients.find())


def test_a_plain_loop_adds_to_memory_that_the_next_pass_overwrites() -> None:
    weight = nn.Parameter(torch.ones(4, dtype=torch.float64))
    loss = graphed(weight)
    for micro_batch in (1.0, 2.0):
        loss(torch.full((4,), micro_batch, dtype=torch.float64)).backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [1.0] * 4  # (2 + 2) / 4: the first gradient is lost. Right is (1 + 2) / 4


@pytest.mark.parametrize("options", [{}, {"clear": "zero"}, {"clear": gg.decay(0.5)}, {"clip_norm": 0.5}])
def test_an_update_keeps_gradients_that_the_next_pass_overwrites(
    options: dict[str, Any], cuda_build: None
) -> None:
    expected = stepped(lambda weight: lambda x: (x * weight).mean(), **options)
    assert torch.allclose(stepped(graphed, **options), expected, rtol=1e-12)


@pytest.mark.usefixtures("cuda_build")
def test_graphs_are_noticed_once_they_are_made() -> None:
    gc.collect()  # classes are in cycles
    assert not reuses_gradients.use()
    made = graphed(torch.ones(1))
    assert reuses_gradients.use()
    del made
    gc.collect()
    assert not reuses_gradients.use()


# -- on a GPU -------------------------------------------------------------------------------------------


def trained(run: Callable[[nn.Module], Callable[[Tensor], Tensor]]) -> list[Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).cuda()
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    forward = run(model)
    for _ in range(6):  # warm-up, recording and replay of the graphs
        micro_batches = torch.randn(5, 4, 8, device="cuda").unbind()
        with accumulator.update() as update:
            for x in update.micro_batches(micro_batches):
                update.backward(forward(x).square().mean(), count=12)
    return [parameter.detach() for parameter in model.parameters()]


def compiled(model: nn.Module) -> Callable[[Tensor], Tensor]:
    found: Callable[[Tensor], Tensor] = torch.compile(model, mode="reduce-overhead")
    return found


def captured(model: nn.Module) -> Callable[[Tensor], Tensor]:
    # The module itself is changed, and a sample of the input shows its shape.
    found: Any = torch.cuda.make_graphed_callables(model, (torch.randn(4, 8, device="cuda"),))
    torch.manual_seed(1)
    return found  # type: ignore[no-any-return]


def plain(model: nn.Module) -> Callable[[Tensor], Tensor]:
    torch.manual_seed(1)
    return model


@pytest.mark.gpu
@pytest.mark.slow
def test_a_model_compiled_with_cuda_graphs_trains_as_without() -> None:
    def seeded(model: nn.Module) -> Callable[[Tensor], Tensor]:
        run = compiled(model)
        torch.manual_seed(1)
        return run

    for with_graphs, without in zip(trained(seeded), trained(plain), strict=True):
        assert torch.allclose(with_graphs, without, rtol=1e-4, atol=1e-6)  # other kernels


@pytest.mark.gpu
def test_a_model_captured_in_cuda_graphs_trains_as_without() -> None:
    for with_graphs, without in zip(trained(captured), trained(plain), strict=True):
        assert torch.allclose(with_graphs, without, rtol=1e-4, atol=1e-6)
