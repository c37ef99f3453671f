"""The rate goes with the effective batch, and rises to it."""

import pytest
import torch.distributed as dist
from torch import nn
from torch.optim import SGD

import gradgate as gg
from tests.accumulation.one_weight import update_by
from tests.tensors import tensor, zeros


def optimizer() -> SGD:
    return SGD(
        [{"params": [nn.Parameter(zeros(1))], "lr": 0.1}, {"params": [nn.Parameter(zeros(1))], "lr": 0.01}]
    )


@pytest.mark.parametrize(("rule", "factor"), [("linear", 16.0), ("sqrt", 4.0)])
def test_every_group_is_scaled_by_the_rule(rule: str, factor: float) -> None:
    one = optimizer()
    assert gg.scale_lr(one, batch=4096, base_batch=256, rule=rule) == factor  # type: ignore[arg-type]
    assert [group["lr"] for group in one.param_groups] == pytest.approx([0.1 * factor, 0.01 * factor])


def test_a_rate_that_is_a_tensor_is_scaled_too() -> None:
    one = SGD([nn.Parameter(zeros(1))], lr=tensor(0.5), foreach=False)
    gg.scale_lr(one, batch=2, base_batch=1)
    assert float(one.param_groups[0]["lr"]) == 1.0


def test_what_one_rank_takes_is_multiplied_by_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gg.scale_lr(optimizer(), batch=512, base_batch=256, per_rank=True) == 2.0  # alone
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    assert gg.scale_lr(optimizer(), batch=512, base_batch=256, per_rank=True) == 16.0
    assert gg.scale_lr(optimizer(), batch=512, base_batch=256, per_rank=True, rule="sqrt") == 4.0
    assert gg.scale_lr(optimizer(), batch=4096, base_batch=256) == 16.0  # all ranks: nothing is multiplied


def test_a_warm_up_rises_evenly_from_the_old_rate_to_the_new_one() -> None:
    weight = nn.Parameter(tensor(0.0))
    one = SGD([weight], lr=0.1)
    factor = gg.scale_lr(one, batch=1024, base_batch=256)
    accumulator = gg.Accumulator(one, scheduler=gg.warmup(one, updates=3, factor=factor))
    rates = []
    for _ in range(5):
        rates.append(one.param_groups[0]["lr"])
        update_by(accumulator, weight, [(1.0, 1), (1.0, 3)])
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
