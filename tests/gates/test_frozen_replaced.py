"""Frozen modules whose parameters, statistics or parts are replaced by other code."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg


def with_another(linear: nn.Linear) -> None:
    linear.weight = nn.Parameter(linear.weight.detach().clone(), requires_grad=False)


REPLACED: dict[str, Callable[[nn.Linear], object]] = {
    "a loaded checkpoint": lambda linear: linear.load_state_dict(linear.state_dict(), assign=True),
    "weight norm": nn.utils.parametrizations.weight_norm,
    "spectral norm": nn.utils.parametrizations.spectral_norm,
    "another parameter": with_another,
}


@pytest.mark.parametrize("how", REPLACED)
def test_parameters_that_were_replaced_while_frozen_are_unfrozen(how: str) -> None:
    linear = nn.Linear(2, 2)
    linear.bias.requires_grad_(False)
    handle = gg.frozen(linear)
    REPLACED[how](linear)
    assert not any(parameter.requires_grad for parameter in linear.parameters())
    handle.unfreeze()
    names = {name for name, parameter in linear.named_parameters() if parameter.requires_grad}
    assert names == {name for name, _ in linear.named_parameters()} - {"bias"}


def test_a_replaced_parameter_stays_frozen_if_another_module_holds_it() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    handles = gg.frozen(first), gg.frozen(second)
    second.weight = first.weight
    handles[1].unfreeze()
    assert not first.weight.requires_grad
    handles[0].unfreeze()
    assert first.weight.requires_grad


def statistics(norm: nn.BatchNorm1d) -> list[Tensor]:
    return [norm.running_mean.clone(), norm.running_var.clone(), norm.num_batches_tracked.clone()]


def test_recomputed_statistics_are_those_of_modules_that_are_not_frozen() -> None:
    """``update_bn`` resets every batch norm. A frozen one would keep a mean of 0 and a variance of 1."""
    frozen, free, x = nn.BatchNorm1d(4), nn.BatchNorm1d(4), 3 + torch.randn(8, 4)
    model = nn.Sequential(frozen, free)
    model(x)
    before, handle = [statistics(norm) for norm in model], gg.frozen(frozen)
    torch.optim.swa_utils.update_bn([x, x, x], model)
    assert all(map(torch.equal, statistics(frozen), before[0]))
    assert not any(map(torch.equal, statistics(free), before[1]))
    copied = copy.deepcopy(frozen)
    handle.unfreeze()
    for norm in (frozen, copied):
        norm.reset_running_stats()
        assert not norm.running_mean.any()
        assert "reset_running_stats" not in vars(norm)


def test_a_batch_norm_in_the_place_of_a_frozen_one_keeps_its_statistics() -> None:
    """It shares the parameters and the statistics."""
    backbone = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = nn.Sequential(backbone, nn.Linear(4, 1))
    handle, norm = gg.frozen(backbone), backbone[1]
    converted = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted[0][1] is not norm
    assert not converted.train()[0][1].training
    handle.unfreeze()
    assert converted.train()[0][1].training
