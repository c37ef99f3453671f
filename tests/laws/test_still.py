"""Law 4, still: a frozen module is bit-identical after any number of steps, optimizer state included."""

import copy
import io
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import OptionError

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD with momentum and decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
    "Adam, one by one": lambda p: torch.optim.Adam(p, lr=0.1, foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9),
}


class Counting(nn.Module):
    """A buffer that each forward pass writes, in evaluation mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        self.last = x[0].detach()
        return x


def model() -> nn.Sequential:
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), Counting(), nn.Dropout(0.5),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
    )  # fmt: skip
    return nn.Sequential(nn.Linear(4, 4), backbone, nn.Linear(4, 1))


def train(whole: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3, *, clear: bool = True) -> None:
    for _ in range(steps):
        whole.train()
        if clear:
            optimizer.zero_grad()
        whole(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def everything(module: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    tensors = [*module.parameters(), *module.buffers()]
    state = [value for one in module.parameters() for value in optimizer.state.get(one, {}).values()]
    return [one.detach().clone() for one in tensors + [one for one in state if isinstance(one, Tensor)]]


def moved(freeze: Callable[[nn.Module], AbstractContextManager[object]], make: Callable[[Any], Any]) -> bool:
    """Train, freeze with gradients and momentum standing, train on: say whether what was frozen changed."""
    whole = model()
    optimizer = make(whole.parameters())
    train(whole, optimizer)
    whole(torch.randn(8, 4)).square().mean().backward()  # gradients stand
    with freeze(whole[1]):
        before = everything(whole[1], optimizer)
        train(whole, optimizer, 5, clear=False)
        after = everything(whole[1], optimizer)
    return not all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


@contextmanager
def requires_grad_only(module: nn.Module):  # type: ignore[no-untyped-def]
    """Known to be wrong: gradients that stand move it, and its statistics go on."""
    module.requires_grad_(False)
    yield


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_frozen_module_stays_still(name: str) -> None:
    assert not moved(gg.frozen, OPTIMIZERS[name])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_law_rejects_a_module_that_only_requires_no_gradient(name: str) -> None:
    assert moved(requires_grad_only, OPTIMIZERS[name])


def test_gradient_passes_through_to_what_lies_before() -> None:
    whole = model()
    with gg.frozen(whole[1]):
        whole(torch.randn(8, 4)).sum().backward()
    assert float(whole[0].weight.grad.abs().sum()) > 0
    assert all(one.grad is None for one in whole[1].parameters())


def test_what_was_is_given_back_exactly() -> None:
    whole = model()
    whole(torch.randn(8, 4)).sum().backward()
    whole[1][0].bias.requires_grad_(False)
    whole[1][1].eval()

    def state() -> list[Any]:
        modules = [
            (one.training, len(one._forward_hooks), len(one._forward_pre_hooks)) for one in whole.modules()
        ]
        return [*modules, *((one.requires_grad, id(one.grad)) for one in whole.parameters())]

    def fail() -> None:
        with gg.frozen(whole[1]):
            whole(torch.randn(8, 4))
            raise ZeroDivisionError

    before = state()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert state() == before


def test_it_is_unfrozen_in_stages() -> None:
    whole = model()
    handle = gg.frozen(whole[1], whole[2])
    handle.unfreeze(whole[2])
    assert [one.requires_grad for one in whole[2].parameters()] == [True, True]
    assert not any(one.requires_grad for one in whole[1].parameters())
    with pytest.raises(OptionError, match="unfreeze: Linear is not frozen by this"):
        handle.unfreeze(whole[2])
    handle.unfreeze(whole[1][1])
    assert whole[1][1].weight.requires_grad
    handle.unfreeze()
    assert all(one.requires_grad for one in whole.parameters())
    assert all(one.training for one in whole.modules())


def test_a_shared_parameter_is_frozen_as_long_as_one_that_holds_it() -> None:
    one, other = nn.Linear(2, 2), nn.Linear(2, 2)
    other.weight = one.weight
    handle = gg.frozen(one, other)
    handle.unfreeze(one)
    assert not one.weight.requires_grad
    assert one.bias.requires_grad
    handle.unfreeze(other)
    assert one.weight.requires_grad


def test_a_frozen_model_can_be_copied_and_saved() -> None:
    whole = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    with gg.frozen(whole[1]):
        twin = copy.deepcopy(whole)
        torch.save(whole, file := io.BytesIO())
        file.seek(0)
        for other in (twin, torch.load(file, weights_only=False)):
            other.train()(x := torch.randn(8, 4)).sum().backward()
            assert torch.equal(other(x), whole(x))
            assert other[1].num_batches_tracked == 0
            assert other[1].weight.grad is None


@pytest.mark.parametrize("given", [(), (torch.ones(2),)])
def test_what_is_no_module_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(OptionError, match="frozen: it was given"):
        gg.frozen(*given)
