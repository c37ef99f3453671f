"""Only the modules that were given are looked at, and they are named by their paths."""

import gc
import weakref

import pytest
import torch
from torch import nn

import gradgate as gg


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


def test_a_model_is_not_kept_alive_by_an_accumulator_that_is_gone() -> None:
    net = nn.Linear(1, 1)
    gone = weakref.ref(net)
    gg.Accumulator(torch.optim.SGD(net.parameters(), lr=1.0), model=net)
    del net
    gc.collect()
    assert gone() is None
