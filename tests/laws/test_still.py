"""Law 4. A frozen module is bit-identical after any number of steps: parameters, buffers, optimizer state."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

import gradgate as gg
from tests.laws.modules import MODULES, condition
from tests.laws.optimizers import OPTIMIZERS
from tests.tensors import bits, on_device, randn

pytestmark = pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")

CLEAR: dict[str, Callable[[Optimizer], None]] = {
    "none": lambda optimizer: optimizer.zero_grad(),
    "zero": lambda optimizer: optimizer.zero_grad(set_to_none=False),
    "never": lambda optimizer: None,
}


@dataclass
class Case:
    """Three blocks: which are frozen, for how many steps, and in which order they are given back."""

    modules: tuple[str, str, str]
    optimizer: str = "AdamW, default"
    frozen: tuple[int, ...] = (1,)  # in the order in which they are given back
    steps_before: int = 1
    steps: int = 2
    clear: str = "none"
    standing: bool = True  # gradients stand when it is frozen
    in_block: bool = False


class Run:
    """A model of three blocks in training."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.blocks = [nn.Sequential(nn.Linear(4, 4), MODULES[name]()) for name in case.modules]
        self.model = on_device(nn.Sequential(*self.blocks))
        self.optimizer = OPTIMIZERS[case.optimizer](self.model.parameters())
        self.clear = CLEAR[case.clear]

    def backward(self) -> None:
        loss = (self.model(randn(8, 4)) - randn(8, 4)).square().mean()
        if loss.requires_grad:  # not if all is frozen
            loss.backward()

    def step(self) -> None:
        self.model.train()
        self.clear(self.optimizer)
        self.backward()
        self.optimizer.step()

    def values(self, block: nn.Module) -> dict[str, dict[str, Tensor]]:
        """All that may not move while a block is frozen, bit for bit."""
        state = [self.optimizer.state.get(one, {}) for one in block.parameters()]
        tensors = [(f"{i} {key}", one) for i, each in enumerate(state) for key, one in each.items()]
        return {
            "parameters": {name: bits(one) for name, one in block.named_parameters()},
            "buffers": {name: bits(one) for name, one in block.named_buffers()},
            "optimizer state": {name: bits(one) for name, one in tensors if isinstance(one, Tensor)},
        }


Freeze = Callable[..., Any]
"""Freezes blocks; returns something with ``unfreeze(block)``. What is wrong may want the optimizer, too."""


def frozen(run: Run, blocks: list[nn.Module]) -> Any:
    return gg.frozen(*blocks)


def assert_still(freeze: Freeze, case: Case) -> None:
    run = Run(case)
    for _ in range(case.steps_before):
        run.step()
    if case.standing:
        run.backward()
    chosen = [run.blocks[number] for number in case.frozen]
    for block in chosen:  # what was so before is so afterwards
        block[0].bias.requires_grad_(False)
        block[1].eval()
    before = {block: (run.values(block), condition(block)) for block in chosen}
    handle = freeze(run, chosen)
    with handle if case.in_block else nullcontext():
        for block in chosen:
            rest = [one for one in run.blocks if one not in before]
            moving = [run.values(one)["parameters"] for one in rest]
            for _ in range(case.steps):
                run.step()
            for values, one in zip(moving, rest, strict=True):
                assert not case.steps or not equal(values, run.values(one)["parameters"]), "the rest stands"
            for one, (values, _) in before.items():
                for what, value in run.values(one).items():
                    assert equal(value, values[what]), f"{what} moved"
            handle.unfreeze(block)
            was = before.pop(block)[1]
            for what, value in condition(block).items():
                assert value == was[what], f"{what} not given back"


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(one, b[name]) for name, one in a.items())


@st.composite
def cases(draw: st.DrawFn, modules: st.SearchStrategy[str], optimizers: st.SearchStrategy[str]) -> Case:
    order, optimizer = draw(st.permutations(range(3))), draw(optimizers)
    # torch's fused SGD raises a TypeError where some parameters have momentum by now and others have not.
    at_least = int(optimizer == "SGD with momentum, fused")
    return Case(
        modules=(draw(modules), draw(modules), draw(modules)),
        optimizer=optimizer,
        frozen=tuple(order[: draw(st.integers(1, 3))]),
        steps_before=draw(st.integers(at_least, 2)),
        steps=draw(st.integers(0, 3)),
        clear=draw(st.sampled_from(sorted(CLEAR))),
        standing=draw(st.booleans()),
        in_block=draw(st.booleans()),
    )


ANY_MODULE, ANY_OPTIMIZER = st.sampled_from(sorted(MODULES)), st.sampled_from(sorted(OPTIMIZERS))


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=10)
@given(data=st.data())
def test_whatever_is_frozen_stays_still_under_each_optimizer(name: str, data: st.DataObject) -> None:
    assert_still(frozen, data.draw(cases(ANY_MODULE, st.just(name))))


@pytest.mark.parametrize("name", MODULES)
@settings(max_examples=10)
@given(data=st.data())
def test_each_module_stays_still(name: str, data: st.DataObject) -> None:
    assert_still(frozen, data.draw(cases(st.just(name), ANY_OPTIMIZER)))


# -- what is known to be wrong ----------------------------------------------------------------------


@dataclass
class ByHand:
    """Something that ends with ``unfreeze``."""

    unfreeze: Callable[[nn.Module], Any]


def requires_grad_only(run: Run, blocks: list[nn.Module]) -> ByHand:
    """Gradients that stand are used, statistics go on."""
    was = {one: one.requires_grad for block in blocks for one in block.parameters()}
    for one in was:
        one.requires_grad_(False)
    return ByHand(lambda block: [one.requires_grad_(was[one]) for one in block.parameters()])


def in_evaluation_mode_too(run: Run, blocks: list[nn.Module]) -> ByHand:
    """The next ``model.train()`` ends it."""
    for block in blocks:
        block.eval().zero_grad()
    return requires_grad_only(run, blocks)


def at_a_rate_of_zero(run: Run, blocks: list[nn.Module]) -> ByHand:
    """The optimizer's averages go on."""
    for group in run.optimizer.param_groups:
        group["lr"] = 0.0
    rest = [p for one in run.blocks if one not in blocks for p in one.parameters()]
    run.optimizer.param_groups[0]["params"] = [p for block in blocks for p in block.parameters()]
    run.optimizer.add_param_group({"params": rest, "lr": 0.1})
    return ByHand(lambda block: None)


def without_a_look_at_buffers(run: Run, blocks: list[nn.Module]) -> Any:
    handle = gg.frozen(*blocks)
    for block in blocks:
        for module in block.modules():
            module._forward_hooks.clear()
            module._forward_pre_hooks.clear()
    return handle


def with_buffers_put_back_in_place(run: Run, blocks: list[nn.Module]) -> Any:
    """The module may have put another tensor there."""
    handle = without_a_look_at_buffers(run, blocks)
    values = [(one, one.clone()) for block in blocks for one in block.buffers()]
    hooks = {
        block: block.register_forward_hook(lambda *_: [one.copy_(was) for one, was in values] and None)
        for block in blocks
    }
    return ByHand(lambda block: (hooks[block].remove(), handle.unfreeze(block)))


def more_than_was_asked(run: Run, blocks: list[nn.Module]) -> Any:
    return gg.frozen(*run.blocks)


def detached(run: Run, blocks: list[nn.Module]) -> ByHand:
    """Nothing passes to what lies before."""
    handle = gg.frozen(*blocks)
    hooks = {block: block.register_forward_hook(lambda *args: args[2].detach()) for block in blocks}
    return ByHand(lambda block: (hooks[block].remove(), handle.unfreeze(block)))


def given_back(but: Callable[[nn.Module], Any]) -> Freeze:
    def freeze(run: Run, blocks: list[nn.Module]) -> ByHand:
        handle = gg.frozen(*blocks)
        return ByHand(lambda block: (handle.unfreeze(block), but(block)))

    return freeze


def between(module: str, **options: Any) -> Case:
    return Case(("LayerNorm", module, "RMSNorm"), **options)


NORM, BATCH_NORM, SGD = between("LayerNorm"), between("BatchNorm1d", standing=False), "SGD, default"

WRONG: list[tuple[str, Freeze, Case]] = [
    ("parameters moved", requires_grad_only, between("LayerNorm", clear="never", optimizer=SGD)),
    ("parameters moved", requires_grad_only, between("LayerNorm", clear="zero")),  # by weight decay
    ("buffers moved", requires_grad_only, BATCH_NORM),
    ("buffers moved", in_evaluation_mode_too, BATCH_NORM),
    ("optimizer state moved", at_a_rate_of_zero, NORM),
    ("buffers moved", without_a_look_at_buffers, between("counting")),
    ("buffers moved", with_buffers_put_back_in_place, between("counting")),
    ("the rest stands", more_than_was_asked, NORM),
    ("the rest stands", detached, between("LayerNorm", optimizer=SGD)),
    ("requires_grad not given back", given_back(lambda block: block.requires_grad_()), NORM),
    ("modes not given back", given_back(lambda block: block.train()), NORM),
    ("gradients not given back", given_back(lambda block: block.zero_grad()), NORM),
    ("hooks not given back", given_back(lambda block: block.register_forward_hook(print)), NORM),
]


@pytest.mark.parametrize(("complaint", "freeze", "case"), WRONG)
def test_the_law_rejects(complaint: str, freeze: Freeze, case: Case) -> None:
    with pytest.raises(AssertionError, match=complaint):
        assert_still(freeze, case)
    assert_still(frozen, case)
