"""Only the modules that were given are looked at, and they are named by their paths."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import BatchNormWarning, OptionError, UpdateError
from tests.messages import raises


def train(accumulator: gg.Accumulator, loss_fn: Callable[[Tensor], Tensor]) -> None:
    with accumulator.update() as update:
        for x in update.micro_batches([torch.randn(4, 2), torch.randn(3, 2)]):
            update.backward(loss_fn(x), count=len(x))


def test_messages_name_parameters_by_their_path_without_wrappers() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1))
    compiled = torch.compile(net, backend="eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    net[1].bias.grad = torch.ones(1)
    for model, path in ((net, "'1.bias'"), (compiled, "'1.bias'"), ([nn.Tanh(), net], "'Sequential.1.bias'")):
        with (
            pytest.raises(gg.errors.GradientError, match=path),
            gg.Accumulator(optimizer, model=model).update(),
        ):
            pass
    with (
        pytest.raises(gg.errors.GradientError, match=r"3 of group 0 \(SGD"),
        gg.Accumulator(optimizer).update(),
    ):
        pass


def test_a_model_that_is_no_module_is_refused() -> None:
    net = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    with raises(OptionError, "a parameter as a model", "Parameter"):
        gg.Accumulator(optimizer, model=list(net.parameters()))  # type: ignore[arg-type]


def test_the_model_may_be_replaced_between_windows_only() -> None:
    net = nn.Linear(1, 1)
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=1.0), model=net)
    accumulator.model = [net]
    assert accumulator.model == [net]
    with accumulator.update() as update:
        update.backward(net(torch.ones(2, 1)).mean(), count=2)
        with raises(UpdateError, "a model set while open"):
            accumulator.model = net


def test_a_model_is_not_kept_alive_by_an_accumulator_that_is_gone() -> None:
    net = nn.Linear(1, 1)
    gone = weakref.ref(net)
    gg.Accumulator(torch.optim.SGD(net.parameters(), lr=1.0), model=net)
    del net
    gc.collect()
    assert gone() is None


def test_without_a_model_a_batch_norm_is_recognised_in_the_graph() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    accumulator = gg.Accumulator(torch.optim.SGD(net.parameters(), lr=0.1))
    with pytest.warns(BatchNormWarning, match="^a batch norm: in training mode"):
        train(accumulator, lambda x: net(x).square().mean())
