"""One backward pass into given parameters, by the short way and by torch's public one."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

# private: one backward pass into given parameters, and into nothing else
from gradgate.accumulation import _sums
from gradgate.events import is_on_purpose
from gradgate.torch_compat import run_backward
from tests.reference import assert_same
from tests.tensors import on_device, randn, tensor


class OwnTensor(Tensor):
    """A subclass, for which torch functions may mean something else."""


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize("kind", [Tensor, OwnTensor])
def test_both_ways_fill_the_inputs_and_nothing_else(
    public: bool, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not run_backward.lost
    if public:
        monkeypatch.setattr(run_backward, "use", run_backward.otherwise)
    model = on_device(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)))
    x = randn(4, 3).requires_grad_()
    unreached = nn.Parameter(tensor(1.0))
    parameters = (model[1].weight, model[0].bias)
    loss = model(x).mean().as_subclass(kind)
    expected = torch.autograd.grad(loss, parameters, retain_graph=True)
    for _ in range(2):
        _sums.backward(loss, torch.full_like(loss, 0.5), (*parameters, unreached), True)
    assert_same([parameter.grad for parameter in parameters], list(expected))
    assert [one.grad for one in (x, unreached, model[0].weight, model[1].bias)] == [None] * 4
    _sums.backward(loss, torch.full_like(loss, 0.5), parameters, False)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        _sums.backward(loss, torch.full_like(loss, 0.5), parameters, False)


def test_who_watches_the_public_function_sees_it_and_that_it_is_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    original = torch.autograd.backward

    def watching(*args: Any, **kwargs: Any) -> None:
        seen.append(is_on_purpose())
        original(*args, **kwargs)

    weight = nn.Parameter(tensor(1.0))
    _sums.backward(2 * weight, tensor(1.0), (weight,), False)
    assert seen == []
    monkeypatch.setattr(torch.autograd, "backward", watching)
    _sums.backward(2 * weight, tensor(1.0), (weight,), False)
    assert seen == [True]
    assert not is_on_purpose()
    assert_same([weight.grad], [tensor(4.0)])
