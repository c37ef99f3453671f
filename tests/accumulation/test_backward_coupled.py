"""Losses over whole windows: what they share with ordinary losses, which graphs are kept, and what is refused."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import gradgate as gg
from gradgate.errors import (
    BatchNormWarning,
    GraphError,
    OptionError,
)
from tests.coupled import Towers, batch, contrastive, gradient, in_one_graph, sizes_of
from tests.laws.modules import Averaging, Counter
from tests.messages import raises
from tests.reference import assert_same, received
from tests.silence import no_warning
from tests.tensors import on_device

CUT = [3, 1, 0, 4]


def spread(z: Tensor) -> Tensor:
    """A loss over all pairs."""
    return -torch.cdist(z, z).add(torch.eye(len(z)).to(z)).log().mean()


def sgd(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for module in modules for p in module.parameters()], lr=0.1)


def run(accumulator: gg.Accumulator, *arguments: Any, **options: Any) -> gg.Update:
    with accumulator.update() as update:
        update.backward_coupled(*arguments, **options)
    return update


class Counted:
    """An encoder that counts its calls and whether each made a graph."""

    def __init__(self, encode: Callable[[Any], Any]) -> None:
        self.encode = encode
        self.calls: list[bool] = []

    def __call__(self, data: Any) -> Any:
        self.calls.append(torch.is_grad_enabled())
        return self.encode(data)


class Pair(NamedTuple):
    codes: Tensor
    rest: tuple[Tensor, Tensor]


# -- what encode may return ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("encode", "loss_fn"),
    [
        (lambda net, x: net(x), spread),
        (
            lambda net, x: Pair(net(x), (x, x.sum())),
            lambda z: spread(z.codes) * z.rest[1].sum() * z.rest[0].mean(),
        ),
        (lambda net, x: [net(x), None], lambda z: spread(z[0])),
    ],
    ids=["a tensor", "named tuples", "a list with None"],
)
def test_representations_are_any_pytree(encode: Any, loss_fn: Any) -> None:
    net = on_device(nn.Linear(5, 3))
    x = batch(8)
    whole = encode(net, x)
    if isinstance(whole, Pair):
        whole = whole._replace(rest=(x, x.sum()[None]))
    expected = gradient(loss_fn(whole), net)
    with received(optimizer := sgd(net)) as steps, gg.Accumulator(optimizer).update() as update:
        update.backward_coupled(lambda part: encode(net, part), sizes_of(CUT), loss_fn)
    assert_same(steps[0], expected)
    assert (update.count, update.micro_batch_count) == (8, 4)
    assert update.loss == pytest.approx(float(loss_fn(whole).detach()))
    assert list(update.losses) == ["coupled"]


# -- with the rest of an update -----------------------------------------------------------------------


def test_several_coupled_losses_and_ordinary_ones_add_up() -> None:
    model, x = Towers(), batch(8)
    whole = model(x)
    expected = gradient(
        contrastive(model, whole) + spread(whole["left"]) + whole["right"].square().sum(1).mean(), model
    )
    optimizer = sgd(model)
    with received(optimizer) as steps, gg.Accumulator(optimizer, model=model).update() as update:
        update.backward_coupled(model, sizes_of(CUT), lambda z: contrastive(model, z))
        for part in update.micro_batches(x.split(3)):
            update.backward(model(part)["right"].square().sum(1).mean(), count=len(part))
        update.backward_coupled(lambda part: model(part)["left"], x.split(2), spread)
    assert_same(steps[0], expected)
    assert {name: tally.count for name, tally in update.losses.items()} == {
        "coupled": 8,
        "loss": 8,
        "coupled 2": 8,
    }


def test_only_what_into_names_and_what_is_owned_gets_a_gradient() -> None:
    model, x = Towers(), batch(8)
    expected = torch.autograd.grad(contrastive(model, model(x)), list(model.left.parameters()))
    optimizer = sgd(model.left, model.right)
    with received(optimizer) as steps, gg.Accumulator(optimizer, model=model).update() as update:
        update.backward_coupled(model, sizes_of(CUT), lambda z: contrastive(model, z), into=model.left)
    assert_same(steps[0][: len(expected)], list(expected))
    assert steps[0][len(expected) :] == [None] * 4
    assert model.log_temperature.grad is model.common.weight.grad is None


def test_loss_scales_apply_once_and_hooks_see_the_gradient_of_a_plain_backward() -> None:
    model = Towers()
    expected = gradient(contrastive(model, model(batch(8))), model)
    seen = torch.zeros_like(model.right[1].bias)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = sgd(model)
    model.right[1].bias.register_hook(lambda gradient: (seen.add_(gradient), None)[1])
    accumulator = gg.Accumulator(optimizer, model=model, scaler=scaler)
    with received(optimizer) as steps, accumulator.update() as update:
        update.backward_coupled(model, sizes_of([4, 4]), lambda z: contrastive(model, z))
    assert_same(steps[0], expected)
    names = [name for name, _ in model.named_parameters()]
    assert_same([seen / 1024], [expected[names.index("right.1.bias")]])  # scaled once, and not by a count


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sums_of_sixteen_bit_parameters_are_wide(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net, x = nn.Linear(5, 3).to(dtype), torch.randn(64, 5).to(dtype)
    loss_fn = lambda z: gg.losses.info_nce(z, z.roll(1, 0))  # noqa: E731
    leaf = net(x).detach().requires_grad_()
    (at_codes,) = torch.autograd.grad(loss_fn(leaf), leaf)
    expected = sum(at_codes[i : i + 4].T.float() @ x[i : i + 4].float() for i in range(0, 64, 4))
    with received(optimizer := sgd(net)) as steps, gg.Accumulator(optimizer).update() as update:
        update.backward_coupled(net, x.split(4), loss_fn)
    assert steps[0][0].dtype == torch.float32
    torch.testing.assert_close(steps[0][0], expected, rtol=0, atol=float(expected.abs().max()) * 1e-2)


def test_a_hook_on_the_loss_may_change_the_seed_in_place() -> None:
    model, parts = Towers(), sizes_of(CUT)

    def loss_fn(z: Any) -> Tensor:
        loss = contrastive(model, z)
        loss.register_hook(lambda seed: seed.mul_(3))
        return loss

    expected = gradient(loss_fn(model(torch.cat(parts))), model)
    with (
        received(optimizer := sgd(model)) as steps,
        gg.Accumulator(optimizer, model=model).update() as update,
    ):
        update.backward_coupled(model, parts, loss_fn)
    assert_same(steps[0], expected)


@pytest.mark.parametrize("with_model", [True, False])
def test_the_second_pass_draws_what_the_first_one_drew_even_if_backward_passes_draw_too(
    with_model: bool,
) -> None:
    model, parts = Towers(dropout=0.5), sizes_of([3, 2, 3])
    torch.manual_seed(3)
    expected = in_one_graph(model, contrastive, parts)

    def encode(x: Tensor) -> Any:
        z = model(x)
        if z["left"].requires_grad:
            z["left"].register_hook(lambda gradient: gradient + 0 * torch.rand(()).to(gradient))
        return z

    torch.manual_seed(3)
    accumulator = gg.Accumulator(optimizer := sgd(model), model=model if with_model else None)
    with received(optimizer) as steps, accumulator.update() as update:
        update.backward_coupled(encode, parts, lambda z: contrastive(model, z))
    assert_same(steps[0], expected)


def test_checkpointed_encoders_are_exact() -> None:
    from torch.utils.checkpoint import checkpoint

    model, parts = Towers(dropout=0.5), sizes_of([3, 2, 3])
    torch.manual_seed(3)
    expected = in_one_graph(model, contrastive, parts)
    torch.manual_seed(3)
    optimizer = sgd(model)
    with received(optimizer) as steps, gg.Accumulator(optimizer, model=model).update() as update:
        update.backward_coupled(
            lambda x: checkpoint(model, x, use_reentrant=False), parts, lambda z: contrastive(model, z)
        )
    assert_same(steps[0], expected)
    with raises(GraphError, "a reentrant checkpoint"):
        run(
            gg.Accumulator(sgd(model), model=model),
            lambda x: checkpoint(lambda x: model(x)["left"], x.requires_grad_(), use_reentrant=True),
            parts,
            spread,
        )


# -- state that a forward pass changes ----------------------------------------------------------------


@pytest.mark.parametrize("with_model", [True, False])
@pytest.mark.parametrize(
    "module",
    [Averaging, Counter, lambda: parametrizations.spectral_norm(nn.Linear(4, 4))],
    ids=["averaging", "counter", "spectral norm"],
)
def test_state_evolves_as_in_one_pass(module: Callable[[], nn.Module], with_model: bool) -> None:
    def made() -> nn.Module:
        torch.manual_seed(2)
        return on_device(nn.Sequential(nn.Linear(5, 4), module()))

    net, other, parts = made(), made(), sizes_of([3, 2, 3])
    # One after the other, with the gradient at the codes: a counter's graph does not survive the next call.
    codes = torch.cat([other(part).detach() for part in parts]).requires_grad_()
    (at_codes,) = torch.autograd.grad(spread(codes), codes)
    again = made()
    expected = [torch.zeros_like(p) for p in again.parameters()]
    for part, outer in zip(parts, at_codes.split([3, 2, 3]), strict=True):
        for total, each in zip(
            expected, torch.autograd.grad(again(part), list(again.parameters()), outer), strict=True
        ):
            total += each
    accumulator = gg.Accumulator(optimizer := sgd(net), model=net if with_model else None)
    with received(optimizer) as steps, accumulator.update() as update:
        update.backward_coupled(net, parts, spread)
    assert_same(steps[0], expected)
    for mine, theirs in zip(net.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("with_model", [True, False])
def test_batch_norm_is_named_and_its_statistics_move_once(with_model: bool) -> None:
    mine, plain = (on_device(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3))) for _ in range(2))
    plain.load_state_dict(mine.state_dict())
    parts = sizes_of([3, 5])
    for part in parts:
        plain(part)
    accumulator = gg.Accumulator(sgd(mine), model=mine if with_model else None)
    with pytest.warns(BatchNormWarning, match="BatchNorm1d '1'" if with_model else "a batch norm") as said:
        run(accumulator, mine, parts, spread)
    assert said[0].filename == __file__
    for key, value in plain.state_dict().items():
        if "running" in key or "tracked" in key:
            torch.testing.assert_close(mine.state_dict()[key], value)


# -- which graphs are kept ----------------------------------------------------------------------------


def test_the_graph_of_the_last_micro_batch_is_kept() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3, bias=False)).double()
    encode, x = Counted(net), torch.randn(20, 5, dtype=torch.float64)
    expected = gradient(spread(net(x)), net)
    with received(optimizer := sgd(net)) as steps, gg.Accumulator(optimizer, model=net).update() as update:
        update.backward_coupled(encode, x.split(5), spread)
    assert encode.calls == [False, False, False, True] + [True] * 3
    assert_same(steps[0], expected)


# -- what is refused ----------------------------------------------------------------------------------


def test_nothing_is_warned_of_and_an_exception_rolls_back() -> None:
    model = Towers()
    model.train()
    before = [p.clone() for p in model.parameters()]
    accumulator = gg.Accumulator(sgd(model), model=model)
    with pytest.raises(ZeroDivisionError):
        run(accumulator, model, sizes_of(CUT), lambda z: contrastive(model, z) / (1 // 0))
    assert all(map(torch.equal, before, model.parameters()))
    assert all(p.grad is None for p in model.parameters())
    with no_warning(), accumulator.update() as update:
        update.backward_coupled(model, sizes_of(CUT), lambda z: contrastive(model, z))
    assert update.stepped


# -- in one call, resumed -----------------------------------------------------------------------------


def test_step_coupled_splits_where_memory_runs_out_and_makes_the_same_update() -> None:
    model, x, sizes = Towers(), batch(12), []
    expected = gradient(contrastive(model, model(x)), model)

    def encode(part: Tensor) -> Any:
        sizes.append(len(part))
        if len(part) > 2 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("as many samples as this do not fit")
        return model(part)

    optimizer = sgd(model)
    accumulator = gg.Accumulator(optimizer, model=model)
    with received(optimizer) as steps:
        update = accumulator.step_coupled(encode, x.split(4), lambda z: contrastive(model, z))
    assert_same(steps[0], expected)
    assert (accumulator.samples_that_fit, update.micro_batch_count, update.count) == (2, 6, 12)
    assert len(steps) == 1
    with raises(OptionError, "a tensor as a window", "step_coupled"):
        accumulator.step_coupled(encode, x, lambda z: contrastive(model, z))


def test_a_resumed_window_does_not_add_the_loss_again() -> None:
    model, parts = Towers(), sizes_of(CUT)
    expected = gradient(
        contrastive(model, model(batch(8))) + model(batch(8))["left"].square().sum(1).mean(), model
    )
    optimizer = sgd(model)

    def window(accumulator: gg.Accumulator, stop: bool) -> dict[str, Any]:
        with accumulator.update() as update:
            update.backward_coupled(model, parts, lambda z: contrastive(model, z))
            for part in update.micro_batches(parts):
                update.backward(model(part)["left"].square().sum(1).mean(), count=len(part))
                if stop and update.micro_batch_count == 2:
                    raise KeyError(accumulator.state_dict())
        return {}

    with pytest.raises(KeyError) as stopped:
        window(gg.Accumulator(optimizer, model=model), stop=True)
    resumed = gg.Accumulator(optimizer, model=model)
    resumed.load_state_dict(stopped.value.args[0])
    with received(optimizer) as steps:
        window(resumed, stop=False)
    assert_same(steps[0], expected)
