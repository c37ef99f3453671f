"""Modules whose parameters receive a scaled gradient, and what lies before them the whole one."""

import torch
from torch import Tensor, nn

from gradgate.gates import scaled
from tests.reference import assert_same
from tests.tensors import on_device, randn


def three() -> nn.Sequential:
    torch.manual_seed(0)
    return on_device(
        nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Tanh()), nn.Linear(3, 1))
    )


def gradients(model: nn.Module, x: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(model(x).square().mean(), model.parameters()))


def test_its_parameters_receive_the_factor_and_all_others_what_they_did() -> None:
    model, x = three(), randn(5, 3)
    plain = gradients(model, x)
    with scaled(model[1], factor=0.1):
        found = gradients(model, x)
    factors = [1, 1, 0.1, 0.1, 1, 1]
    assert_same(found, [factor * one for factor, one in zip(factors, plain, strict=True)])
    assert_same(gradients(model, x), plain)


def test_a_schedule_is_asked_at_each_backward() -> None:
    model, x = three(), randn(5, 3)
    plain = gradients(model, x)
    strength = 0.0
    with scaled(model, factor=lambda: strength):
        assert not any(one.any() for one in gradients(model, x))
        strength = 2.0
        assert_same(gradients(model, x), [2 * one for one in plain])


def test_factors_multiply_and_a_shared_parameter_is_scaled_once() -> None:
    model, x = three(), randn(5, 3)
    plain = gradients(model, x)
    with scaled(model[1], model, factor=3), scaled(model, factor=0.5):
        assert_same(gradients(model, x), [1.5 * one for one in plain])


def test_what_is_frozen_now_is_scaled_when_it_is_unfrozen() -> None:
    model, x = three().requires_grad_(False), randn(5, 3)
    with scaled(model[0], factor=0.0):
        assert not any(one.requires_grad for one in model.parameters())
        model.requires_grad_(True)
        found = gradients(model, x)
    assert [bool(one.any()) for one in found] == [False, False, True, True, True, True]
