"""The norm of sharded gradients is the norm of all gradients, in any dtype and of any size."""

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

import gradgate as gg
from tests.ranks.processes import in_a_row

pytestmark = pytest.mark.slow

# The largest gradient, and its dtype: beyond the digits of bfloat16, the range of float16, and squares in float64.
SIZES = [(1.0, torch.bfloat16), (3000.0, torch.float16), (1e200, torch.float64), (math.inf, torch.float64)]


def norm_of(rank: int, size: float, dtype: torch.dtype) -> tuple[float, float]:
    """Train blocks on three meshes, and a plain one; return the norm, and that of the gathered gradients."""
    from torch.distributed.fsdp import fully_shard

    net = nn.Sequential(*(nn.Linear(700, 1, bias=False, dtype=dtype) for _ in range(4)))
    for layer, shape in zip(net, ((2,), (2, 1), (1, 2)), strict=False):
        names = ("replicate", "shard")[-len(shape) :]
        fully_shard(layer, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    for parameter in net.parameters():
        nn.init.zeros_(parameter)
    factors = torch.linspace(0.5, 1.0, 700, dtype=torch.float64) * size
    gradients: list[Any] = []

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        gradients.extend(parameter.grad for parameter in net.parameters())

    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    optimizer.register_step_pre_hook(keep)
    with gg.Accumulator(optimizer, model=net, nonfinite="step").update() as update:
        for _ in update.micro_batches([0]):
            update.backward(sum(layer(factors.to(dtype)).sum() for layer in net), count=1)
    whole = [g.full_tensor() if hasattr(g, "full_tensor") else g for g in gradients]
    return float(update.grad_norm), math.hypot(*torch.cat(whole).double().flatten().tolist())


def test_the_norm_of_gradients_on_different_meshes_is_that_of_all_of_them() -> None:
    for (size, dtype), outcomes in zip(SIZES, in_a_row(norm_of, 2, SIZES), strict=True):
        for outcome in outcomes:
            norm, expected = outcome
            # 16-bit gradients are squared and added in float32, in blocks.
            assert norm == pytest.approx(expected, rel=1e-12 if dtype is torch.float64 else 1e-6), (
                size,
                dtype,
            )
