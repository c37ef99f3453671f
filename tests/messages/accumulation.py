"""Wrong uses of an accumulator: its options, its windows, its losses and their counts, its states."""

import copy
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import LBFGS, SGD
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.utils.checkpoint import checkpoint

import gradgate as gg

# private: a count on a device is read when the window ends; there is no device here
from gradgate.accumulation._sums import total
from tests.accumulation.one_weight import StopError, add, one_weight, update_by
from tests.tensors import zeros


def named(**options: Any) -> tuple[nn.Parameter, SGD, gg.Accumulator]:
    """A weight whose name the optimizer knows."""
    weight = nn.Parameter(torch.tensor(0.0))
    optimizer = SGD([("weight", weight)], lr=1.0)
    return weight, optimizer, gg.Accumulator(optimizer, **options)


def with_model() -> gg.Accumulator:
    model = nn.Linear(1, 1)
    return gg.Accumulator(SGD(model.parameters(), lr=1.0), model=model)


def missing_count() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight.exp() * 2)


def missing_count_of_a_sum() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight.exp().sum(), reduction="sum")


def no_items() -> None:
    weight, _, accumulator = named()
    update_by(accumulator, weight, [(1.0, 0), (1.0, 0)])


def nothing_at_all() -> None:
    named()[2].update().__enter__().__exit__(None, None, None)


def a_vector() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight * zeros(8).cpu(), count=8)


def a_sum_called_a_mean() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(
            nn.functional.mse_loss(weight * torch.ones(3), torch.ones(3), reduction="sum"), count=3
        )


def no_graph() -> None:
    weight, _, accumulator = named()
    update_by(accumulator, weight.detach(), [(1.0, 1)])


def not_reached() -> None:
    _, _, accumulator = named()
    update_by(accumulator, torch.ones((), requires_grad=True), [(1.0, 1)])


def frozen() -> None:
    weight, _, accumulator = named()
    weight.requires_grad_(False)
    update_by(accumulator, torch.ones((), requires_grad=True), [(1.0, 1)])


def a_users_gradient() -> None:
    weight, _, accumulator = named()
    weight.grad = torch.ones(())
    update_by(accumulator, weight, [(1.0, 1)])


def owned_twice() -> None:
    _, optimizer, accumulator = named()
    with accumulator.update():
        gg.Accumulator(optimizer).update().__enter__()


def another_micro_batch_or_another_loss() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight * 1, count=1)
        update.backward(weight * 1, count=1)


def drawn_ahead() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        for gradient in list(update.micro_batches([1.0, 2.0])):
            update.backward(weight * gradient, count=1)


def after_the_block() -> None:
    weight, _, accumulator = named()
    update_by(accumulator, weight, [(1.0, 1)]).backward(weight * 1, count=1)


def not_finite() -> None:
    weight, _, accumulator = named()
    update_by(accumulator, weight, [(1.0, 1), (float("inf"), 1)])


def does_not_fit() -> None:
    def loss_fn(x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nMore lines.")

    with_model().step(loss_fn, torch.ones(4))


def cannot_be_cut() -> None:
    def loss_fn(x: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with_model().step(loss_fn, {"x": torch.ones(4), "lengths": [1, 2, 3]})


def no_model() -> None:
    def loss_fn(x: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    named()[2].step(loss_fn, torch.ones(4))


def a_window_as_a_batch() -> None:
    named()[2].step(
        lambda _: torch.ones(()), [(torch.ones(4), torch.ones(4, 2)), (torch.ones(3), torch.ones(3, 2))]
    )


def an_iterator_as_a_batch() -> None:
    named()[2].step(lambda _: torch.ones(()), iter([torch.ones(4)]))


def a_batch_as_a_window() -> None:
    named()[2].step_window(lambda _: torch.ones(()), (torch.ones(4, 2), torch.ones(4)))


def torn_step() -> None:
    class HalfWay(SGD):
        def step(self, closure: None = None) -> None:
            super().step()
            raise StopError

    weight = nn.Parameter(torch.tensor(0.0))
    update_by(gg.Accumulator(HalfWay([("weight", weight)], lr=1.0)), weight, [(1.0, 1)])


def closure() -> None:
    gg.Accumulator(LBFGS([nn.Parameter(zeros(1))]))


def plateau() -> None:
    _, optimizer, _ = named()
    gg.Accumulator(optimizer, scheduler=ReduceLROnPlateau(optimizer))


def two_clips() -> None:
    named(clip_norm=1.0, clip_value=0.5)


def scale_moved() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    weight, _, accumulator = named(scaler=scaler)
    with accumulator.update() as update:
        add(update, weight, [(1.0, 1)])
        scaler.update(new_scale=512.0)


def other_parameters() -> None:
    state = one_weight()[2].state_dict()
    gg.Accumulator(SGD([nn.Parameter(zeros(2))])).load_state_dict(state)


def rate_already_scheduled() -> None:
    _, optimizer, _ = named()
    StepLR(optimizer, 1)
    gg.scale_lr(optimizer, batch=512, base_batch=256)


def backward(
    loss: Callable[[nn.Parameter], Any], options: dict[str, Any] | None = None, **given: Any
) -> None:
    """Call backward in an open update, with a loss of the weight."""
    weight, _, accumulator = named(**(options or {}))
    with accumulator.update() as update:
        update.backward(loss(weight), **{"count": 1, **given})


def plain(weight: Tensor) -> Tensor:
    return weight * 1.0


def counted(count: Any) -> Callable[[], None]:
    return lambda: backward(plain, count=count)


def divided() -> None:
    model = nn.Linear(3, 2)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        update.backward(F.mse_loss(model(torch.ones(4, 3)), torch.zeros(4, 2)) / 4)


def twice(into: str) -> None:
    weight = nn.Parameter(torch.tensor(0.0))
    optimizer = SGD([("weight", weight)], lr=1.0)
    optimizers = [optimizer, SGD([("weight", weight)], lr=0.5)] if into == "two" else optimizer
    update_by(gg.Accumulator(optimizers), weight, [(1.0, 1)])


def caught_inside() -> None:
    weight, _, accumulator = named()

    def stop(_: Tensor) -> None:
        raise StopError

    with accumulator.update() as update:
        loss = weight * 1.0
        loss.register_hook(stop)
        with suppress(StopError):
            update.backward(loss, count=1)


def cleared_inside() -> None:
    weight, optimizer, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight * 1.0, count=1)
        optimizer.zero_grad()


def stepped_inside() -> None:
    weight, optimizer, accumulator = named()
    with accumulator.update() as update:
        update.backward(weight * 1.0, count=1)
        optimizer.step()


def entered_twice() -> None:
    weight, _, accumulator = named()
    with update_by(accumulator, weight, [(1.0, 1)]):
        pass


def two_windows() -> None:
    with named()[2].update() as update:
        for _ in range(2):
            update.micro_batches([1])


def unequal_losses() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        for number in update.micro_batches([1, 2]):
            for _ in range(number):
                update.backward(weight * 1.0, count=1)


def drawn_twice() -> None:
    window = next(iter(gg.windows([1, 2], size=2)))
    weight, _, accumulator = named()
    with accumulator.update() as update:
        for _ in update.micro_batches(window):
            update.backward(weight * 1.0, count=1)
    list(window)


def model_while_open() -> None:
    accumulator = with_model()
    with accumulator.update():
        accumulator.model = nn.Linear(1, 1)


def read(name: str) -> Callable[[], None]:
    def cause() -> None:
        with named()[2].update() as update:
            getattr(update, name)

    return cause


def into(target: Any, *, frozen: bool = False) -> Callable[[], None]:
    def cause() -> None:
        model = nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})
        model["b"].requires_grad_(not frozen)
        with gg.Accumulator(SGD(model.parameters(), lr=1.0), model=model).update() as update:
            update.backward(model["a"](torch.ones(1, 1)).sum(), count=1, into=target(model))

    return cause


def loading(change: Callable[[dict[str, Any]], Any], **options: Any) -> Callable[[], None]:
    """Load a changed state of an unfinished window."""

    def cause() -> None:
        weight, _, accumulator = named()
        with accumulator.update() as update:
            add(update, weight, [(1.0, 1)])
            state = accumulator.state_dict()
        change(state)
        named(**options)[2].load_state_dict(state)

    return cause


def load_while_open() -> None:
    accumulator = named()[2]
    with accumulator.update():
        accumulator.load_state_dict(accumulator.state_dict())


def one_noise_scale_for_two() -> None:
    noise = gg.NoiseScale()
    kept = [named(noise_scale=noise) for _ in range(2)]
    del kept


def class_weights_or_weights_of_samples() -> None:
    def loss_fn(batch: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    x, y = torch.ones(4, 2), torch.zeros(4, dtype=torch.long)
    with_model().step(loss_fn, {"x": x, "y": y, "weight": torch.ones(4)})


def entered() -> None:
    with named()[2]:
        pass


def coupled(
    encode: Callable[[Any], Any], loss_fn: Callable[[Any], Tensor] = torch.mean, window: Any = None
) -> Callable[[], None]:
    def cause() -> None:
        weight, _, accumulator = named()
        with accumulator.update() as update:
            parts = torch.ones(4, 2).split(2) if window is None else window
            update.backward_coupled(lambda x: encode(x * weight), parts, loss_fn)

    return cause


def encoded_otherwise() -> None:
    calls: list[int] = []

    def encode(x: Tensor) -> Tensor:
        calls.append(1)
        return x + len(calls)

    coupled(encode)()


def moves_late() -> None:
    """A large teacher that encode moves in the second window, but not in the first."""
    weight, optimizer, _ = named()
    model = nn.Module()
    model.student, model.teacher = weight, nn.Linear(1024, 257, bias=False)
    accumulator = gg.Accumulator(optimizer, model=model)

    def encode(x: Tensor) -> Tensor:
        with torch.no_grad():
            model.teacher.weight.mul_(0.5)
        return x * weight

    for each in (lambda x: x * weight, encode):
        accumulator.step_coupled(each, [torch.ones(2), torch.ones(2)], torch.mean)


def coupled_twice() -> None:
    weight, _, accumulator = named()
    with accumulator.update() as update:
        for _ in range(2):
            update.backward_coupled(lambda x: x * weight, [torch.ones(2)], torch.mean, name="clip")


def compared_in_parts() -> None:
    model = nn.Linear(3, 3)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        for x in update.micro_batches(torch.randn(8, 3).split(4)):
            z = model(x)
            update.backward(F.cross_entropy(z @ z.T, torch.arange(4)), count=4)


def mixed_samples() -> None:
    first, last = nn.Linear(3, 4), nn.Linear(4, 3)
    with gg.Accumulator(SGD([*first.parameters(), *last.parameters()], lr=1.0)).update() as update:
        for x in update.micro_batches(torch.randn(8, 3).split(4)):
            h = first(x)
            update.backward(F.cross_entropy(last(h - h.mean(0)), torch.tensor([0, 1, 2, 0])))


def clipped_in_parts(hook: bool) -> None:
    model = nn.Linear(3, 1)
    if hook:
        model.weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    with gg.Accumulator(SGD(model.parameters(), lr=1.0), model=model).update() as update:
        for x in update.micro_batches(torch.randn(8, 3).split(4)):
            out = model(x) if hook else gg.clip_gradient(model(x), max_value=0.01)
            update.backward(F.mse_loss(out, torch.ones(4, 1)), count=4)


def weights_of_each_part() -> None:
    model = nn.Linear(3, 2)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        for y in update.micro_batches([torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 1, 1])]):
            weight = len(y) / y.bincount()
            update.backward(F.cross_entropy(model(torch.randn(4, 3)), y, weight=weight))


def compared_without_a_count() -> None:
    model = nn.Linear(3, 3)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        z = model(torch.randn(4, 3))
        update.backward(F.cross_entropy(z @ z.T, torch.arange(4)))


def root_of_a_mean() -> None:
    model = nn.Linear(3, 1)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        for x in update.micro_batches(torch.randn(8, 3).split(4)):
            update.backward(F.mse_loss(model(x), torch.ones(4, 1)).sqrt(), count=4)


def root_without_a_count() -> None:
    model = nn.Linear(3, 1)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        update.backward(F.mse_loss(model(torch.randn(4, 3)), torch.ones(4, 1)).sqrt())


def batch_norm_in_training() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with gg.Accumulator(SGD(model.parameters(), lr=1.0), model=model).update() as update:
        for x in update.micro_batches(torch.randn(8, 3).split(4)):
            update.backward(model(x).mean(), count=4)


def counted_by_samples() -> None:
    model = nn.Linear(3, 5)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        for valid in update.micro_batches([4, 2]):
            labels = torch.where(torch.arange(4) < valid, 1, -100)
            update.backward(F.cross_entropy(model(torch.ones(4, 3)), labels), count=4)


def counted_for_one_term() -> None:
    model = nn.Linear(3, 5)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        for valid in update.micro_batches([4, 2]):
            out, labels = model(torch.ones(4, 3)), torch.where(torch.arange(4) < valid, 1, -100)
            update.backward(F.cross_entropy(out, labels) + out.square().mean(), count=4)


def divided_by_all_items() -> None:
    model = nn.Linear(3, 5)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        for x in update.micro_batches(torch.ones(8, 3).split(4)):
            labels = torch.zeros(4, dtype=torch.long)
            update.backward(F.cross_entropy(model(x), labels, reduction="sum") / 8, count=4)


def divided_twice() -> None:
    model = nn.Linear(3, 1)
    with gg.Accumulator(SGD(model.parameters(), lr=1.0)).update() as update:
        for x in update.micro_batches(torch.ones(8, 3).split(4)):
            update.backward(model(x).mean() / 2, count=4)


def reentrant_checkpoint() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    with gg.Accumulator(SGD(model.parameters(), lr=1.0), model=model).update() as update:
        z = checkpoint(model[0], torch.ones(2, 3, requires_grad=True), use_reentrant=True)
        update.backward(model[1](z).mean(), count=2)


def planned(**options: Any) -> None:
    model = nn.Linear(3, 1)
    accumulator = gg.Accumulator(SGD(model.parameters(), lr=1.0), model=model)
    plan = gg.plan(lambda x: model(x).mean(), torch.ones(4, 3), budget_bytes="1 MB")
    accumulator.step(lambda x: model(x).mean(), torch.ones(4, 3), plan=plan, **options)


def rate_per_rank() -> None:
    with mock.patch.dict(os.environ, {"WORLD_SIZE": "8"}):
        gg.scale_lr(named()[1], batch=2, base_batch=1, per_rank=True)


def moves_in_place() -> None:
    """Change an owned parameter in the loss function, and run out of memory."""
    model = nn.Linear(1, 1)

    def loss_fn(x: Tensor) -> Tensor:
        with torch.no_grad():
            model.weight.add_(1.0)
        raise torch.OutOfMemoryError("CUDA out of memory.")

    gg.Accumulator(SGD(model.parameters(), lr=1.0), model=model).step(loss_fn, torch.ones(4))


def scaled_by_hand() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    backward(lambda weight: scaler.scale(weight.exp().mean()), {"scaler": scaler})


def step(returned: Any, **options: Any) -> Callable[[], None]:
    return lambda: with_model().step(lambda _: returned, torch.ones(4), **options)


CASES: dict[str, Any] = {
    "missing count": missing_count,
    "missing count of a sum": missing_count_of_a_sum,
    "no items": no_items,
    "nothing at all": nothing_at_all,
    "a vector": a_vector,
    "a sum called a mean": a_sum_called_a_mean,
    "no graph": no_graph,
    "not reached": not_reached,
    "frozen": frozen,
    "a users gradient": a_users_gradient,
    "owned twice": owned_twice,
    "a second call without a name": another_micro_batch_or_another_loss,
    "drawn ahead": drawn_ahead,
    "after the block": after_the_block,
    "not finite": not_finite,
    "does not fit": does_not_fit,
    "cannot be cut": cannot_be_cut,
    "no model": no_model,
    "a window as a batch": a_window_as_a_batch,
    "an iterator as a batch": an_iterator_as_a_batch,
    "a batch as a window": a_batch_as_a_window,
    "torn step": torn_step,
    "closure": closure,
    "plateau": plateau,
    "two clips": two_clips,
    "scale moved": scale_moved,
    "other parameters": other_parameters,
    "rate already scheduled": rate_already_scheduled,
    "a count that is a vector": counted(torch.ones(2)),
    "a count that is a word": counted("4"),
    "a count on a device that is nan": lambda: total([4, torch.tensor(float("nan"))]),
    "a negative count": counted(-1),
    "a mean divided without a count": divided,
    "a loss that is a number": lambda: backward(lambda _: 1.0),
    "a loss of integers": lambda: backward(lambda _: torch.tensor(1)),
    "an empty into": into(lambda model: []),
    "into a word": into(lambda model: "head"),
    "into an unowned module": into(lambda model: nn.Linear(1, 1)),
    "into a frozen module": into(lambda model: model["b"], frozen=True),
    "into a module beside the loss": into(lambda model: model["b"]),
    "a parameter of two optimizers": lambda: twice("two"),
    "an exception caught inside": caught_inside,
    "gradients cleared inside": cleared_inside,
    "a step inside": stepped_inside,
    "an update entered twice": entered_twice,
    "two windows in an update": two_windows,
    "unequal numbers of losses": unequal_losses,
    "a window drawn twice": drawn_twice,
    "a model set while open": model_while_open,
    "a loss read too early": read("loss"),
    "a norm read too early": read("grad_norm"),
    "a noise scale that is not measured": read("noise_scale"),
    "a loss multiplied by the scale": scaled_by_hand,
    "a tensor as a window": lambda: with_model().step_window(lambda _: torch.ones(()), torch.ones(4)),
    "no optimizer": lambda: gg.Accumulator([]),
    "a word as an optimizer": lambda: gg.Accumulator("SGD"),  # type: ignore[arg-type]
    "a word as a scheduler": lambda: named(scheduler="StepLR"),
    "a parameter as a model": lambda: named(model=nn.Parameter(torch.ones(1))),
    "a clip at 0": lambda: named(clip_norm=0.0),
    "an unknown nonfinite": lambda: named(nonfinite="ignore"),
    "steps on overflows": lambda: named(nonfinite="step", scaler=torch.amp.GradScaler("cpu")),
    "an unknown clear": lambda: named(clear="all"),
    "a decay of 1": lambda: gg.decay(1.0),
    "a noise scale that is a number": lambda: named(noise_scale=3),
    "a noise scale with a decay of 2": lambda: gg.NoiseScale(decay=2.0),
    "a noise scale for two": one_noise_scale_for_two,
    "an update hook that is a number": lambda: named()[2].register_update_hook(3),  # type: ignore[arg-type]
    "an unknown rule for the rate": lambda: gg.scale_lr(named()[1], batch=2, base_batch=1, rule="log"),  # type: ignore[arg-type]
    "a batch of 0 samples": lambda: gg.scale_lr(named()[1], batch=0, base_batch=1),
    "a warm-up of 0 updates": lambda: gg.warmup(named()[1], updates=0, factor=2.0),
    "windows of size 0": lambda: gg.windows([1], size=0),
    "the length of endless windows": lambda: len(gg.windows(iter([1]), size=1)),  # type: ignore[arg-type]
    "an unknown deal": lambda: planned(deal="halves"),
    "a dimension beside a plan": lambda: planned(batch_dim=0),
    "a rate for ranks that are not there": rate_per_rank,
    "a loss function that moves parameters": moves_in_place,
    "a reentrant checkpoint": reentrant_checkpoint,
    "a deal without a plan": step(None, deal="whole"),
    "a step that returns a number": step(3.0),
    "an accuracy as the count": step((F.mse_loss(torch.ones(4, requires_grad=True), torch.zeros(4)), 0.75)),
    "a step without a count": step(torch.ones((), requires_grad=True) * 1),
    "a state of another version": loading(lambda state: state.update(format=0)),
    "a state with decayed gradients": loading(lambda state: state.update(carried=[])),
    "a state with a scaler": loading(lambda state: None, scaler=torch.amp.GradScaler("cpu")),
    "loading into an open update": load_while_open,
    "an encoder without tensors": coupled(lambda _: "words"),
    "an encoder with other rows": coupled(lambda x: x, window=[torch.ones(2, 2), torch.ones(2, 3)]),
    "a copy of an accumulator": lambda: copy.deepcopy(named()[2]),
    "weights of classes or of samples": class_weights_or_weights_of_samples,
    "a clip that is a word": lambda: named(clip_norm="1"),
    "a scheduler of another optimizer": lambda: named(scheduler=StepLR(named()[1], 1)),
    "a model of another optimizer": lambda: named(model=nn.Linear(1, 1)),
    "a batch before the loss function": lambda: named()[2].step(torch.ones(4), torch.mean),  # type: ignore[arg-type]
    "a backward of the accumulator": lambda: named()[2].backward(torch.ones(())),
    "an accumulator entered": entered,
    "an encoder that returns an array": coupled(lambda x: (x, x.detach().numpy())),
    "an encoder under no_grad": coupled(lambda x: x.detach()),
    "an encoder that changes": encoded_otherwise,
    "a momentum encoder that moves late": moves_late,
    "a coupled loss of nothing": coupled(lambda x: x, lambda _: torch.ones(())),
    "a coupled window without items": coupled(lambda x: x, window=[]),
    "a coupled loss twice": coupled_twice,
    "a loss that compares its items": compared_in_parts,
    "a loss that compares its items, without a count": compared_without_a_count,
    "a function of a mean": root_of_a_mean,
    "a function of a mean, without a count": root_without_a_count,
    "a model that mixes samples": mixed_samples,
    "a hook that clips": lambda: clipped_in_parts(hook=True),
    "a gate that clips in a window": lambda: clipped_in_parts(hook=False),
    "class weights of each micro-batch": weights_of_each_part,
    "a batch norm in training": batch_norm_in_training,
    "counts of samples, not of labels": counted_by_samples,
    "one count for two terms": counted_for_one_term,
    "a loss divided by the micro-batches": divided_twice,
    "a sum divided by all items of the window": divided_by_all_items,
}
