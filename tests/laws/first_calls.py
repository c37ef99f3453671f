"""How each public name is called; run as a program, calls each in a process in which gradgate has not run yet.

``python -m tests.laws.first_calls`` forks for each call and prints, as JSON, which random generators it has moved.
"""

import contextlib
import importlib
import io
import json
import os
import pickle
import random
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy
import torch
import torch._dynamo  # or each process that is forked would import it anew
import transformers
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.data import DataLoader

import gradgate as gg

FOR_USERS = ("gates", "losses", "planning", "testing")
TRAINERS = ("accelerate", "lightning", "transformers")


def public_names() -> dict[str, Any]:
    """Return what is exported: ``gradgate.__all__``, and what packages and integrations for users add to it."""
    named = {name: getattr(gg, name) for name in gg.__all__}
    for path in (*FOR_USERS, *(f"integrations.{name}" for name in TRAINERS)):
        module = importlib.import_module(f"gradgate.{path}")
        mine = [
            name
            for name, value in vars(module).items()
            if getattr(value, "__module__", "") == module.__name__
        ]
        for name in getattr(module, "__all__", mine):
            value = getattr(module, name)
            if name[0] != "_" and not any(value is known for known in named.values()):
                named[f"{path.rpartition('.')[2]}.{name}"] = value
    return named


# -- generators -----------------------------------------------------------------------------------------


def states() -> dict[str, Any]:
    return {"torch": torch.get_rng_state(), "random": random.getstate(), "numpy": numpy.random.get_state()}


def restore(saved: dict[str, Any]) -> None:
    torch.set_rng_state(saved["torch"])
    random.setstate(saved["random"])
    numpy.random.set_state(saved["numpy"])


def moved(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    plain = lambda state: pickle.dumps(state.tolist() if isinstance(state, Tensor) else state)  # noqa: E731
    return [name for name in before if plain(before[name]) != plain(after[name])]


def undrawn(make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Do what a script itself does, and what may draw, without moving a generator."""
    before = states()
    try:
        return make(*args, **options)
    finally:
        restore(before)


# -- calls ----------------------------------------------------------------------------------------------

X, Y = torch.arange(12.0).view(6, 2) / 12, torch.arange(6.0).view(6, 1)
Batch = tuple[Tensor, Tensor]


class Task:
    """A model, its optimizer and its loss."""

    def __init__(self, make: Callable[[], nn.Module] = lambda: nn.Linear(2, 1)) -> None:
        self.model = undrawn(make)
        self.optimizer = SGD(self.model.parameters(), lr=0.1)

    def loss(self, batch: Batch) -> Tensor:
        return (self.model(batch[0]) - batch[1]).square().mean()

    def accumulator(self, **options: Any) -> gg.Accumulator:
        return gg.Accumulator(self.optimizer, model=self.model, **options)

    def update(self, **options: Any) -> gg.Update:
        with self.accumulator(**options).update() as update:
            for batch in update.micro_batches(zip(X.split(4), Y.split(4), strict=True)):
                update.backward(self.loss(batch))
        return update

    def plainly(self, batch: Batch) -> None:
        self.loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def checked(self, check: Callable[..., Any]) -> Any:
        options = {"optimizer": self.optimizer, "loss_fn": self.loss, "model": self.model}
        return check(self.plainly, (X, Y), **options)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1))


def planned() -> gg.Plan:
    return gg.plan(Task().loss, (X, Y), budget_bytes="1GiB")


def split() -> Any:
    return planned().split((X, Y))


def coupled() -> None:
    task = Task()
    with task.accumulator().update() as update:
        update.backward_coupled(task.model, list(X.split(2)), lambda z: z.var())


def resumed() -> None:
    accumulator = Task().accumulator()
    accumulator.load_state_dict(accumulator.state_dict())


def watched() -> None:
    task = Task()
    with contextlib.redirect_stdout(io.StringIO()), gg.watch():
        task.plainly((X, Y))


def frozen() -> None:
    model = undrawn(net)
    with gg.frozen(model):
        model.train()(X)


def scaled() -> None:
    task = Task()
    with gg.scaled(task.model, factor=0.5):
        task.plainly((X, Y))


def rows() -> Any:
    table = undrawn(nn.Embedding, 4, 2)
    handle = gg.train_rows(table, [1])
    table(torch.tensor([0, 1])).sum().backward()
    SGD(table.parameters(), lr=0.1, momentum=0.9).step()
    return handle


def flow() -> Any:
    task = Task()
    return gg.flow(task.loss((X, Y)), task.model, optimizer=task.optimizer)


def expected() -> None:
    task = Task()
    gg.expect_flow(task.loss((X, Y)), into=task.model)


def mean() -> Tensor:
    return Task().loss((X, Y))


def beside(run: Callable[[bool], object]) -> None:
    """Run a trainer that draws without and with gradgate; move a generator if only one of them does."""
    before = states()
    run(False)
    without = states()
    restore(before)
    run(True)
    if not moved(without, states()):
        restore(before)


def accelerated(exactly: bool) -> None:
    from accelerate import Accelerator

    from gradgate.integrations.accelerate import exact

    task, accelerator = Task(), Accelerator(cpu=True, gradient_accumulation_steps=2)
    if exactly:
        exact(accelerator)
    model, optimizer = accelerator.prepare(task.model, task.optimizer)
    for x, y in zip(X.split(3), Y.split(3), strict=True):
        with accelerator.accumulate(model):
            accelerator.backward((model(x) - y).square().mean())
            optimizer.step()
            optimizer.zero_grad()


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.task = Task()
        self.model = self.task.model

    def training_step(self, batch: Any) -> Tensor:
        return self.task.loss(batch)

    def configure_optimizers(self) -> SGD:
        return self.task.optimizer


def fitted(callback: str, **options: Any) -> None:
    def fit(with_it: bool) -> None:
        from gradgate.integrations import lightning

        loader = DataLoader(list(zip(X, Y, strict=True)), batch_size=2, shuffle=True)
        quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=1,
            accumulate_grad_batches=2,
            callbacks=[getattr(lightning, callback)(**options)] if with_it else [],
            **dict.fromkeys(quiet, False),
        )
        trainer.fit(Module(), loader)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beside(fit)


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = undrawn(nn.Linear, 2, 1)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"loss": (self.layer(x) - labels).square().mean()}


def trained(name: str) -> None:
    def train(with_it: bool) -> None:
        from gradgate.integrations import transformers as ours

        data = [{"x": x, "labels": y} for x, y in zip(X, Y, strict=True)]
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder,
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                num_train_epochs=1,
                report_to=[],
                save_strategy="no",
                use_cpu=True,
                disable_tqdm=True,
                dataloader_pin_memory=False,
            )
            watching = [ours.WatchGradientsCallback(show=False)] if with_it and name != "exact" else []
            trainer = transformers.Trainer(Labelled(), arguments, train_dataset=data, callbacks=watching)
            if with_it and name == "exact":
                ours.exact(trainer)
            trainer.train()

    beside(train)


CALLS: dict[str, Callable[[], object]] = {
    "param_groups": lambda: gg.param_groups(Task(net).model, lr=0.1, weight_decay=0.1),
    "scale_lr": lambda: gg.scale_lr(Task().optimizer, batch=8, base_batch=4),
    "warmup": lambda: gg.warmup(Task().optimizer, updates=3, factor=2.0).step(),
    "NoiseScale": lambda: Task().update(noise_scale=gg.NoiseScale()).noise_scale,
    "Accumulator": lambda: repr(Task().accumulator()),
    "Accumulator.step": lambda: _stepped("step", (X, Y)),
    "Accumulator.step_window": lambda: _stepped("step_window", [(X[:4], Y[:4]), (X[4:], Y[4:])]),
    "Accumulator.load_state_dict": resumed,
    "Update": lambda: Task().update(clip_norm=1.0, undo_step=True, clear=gg.decay(0.5)),
    "Update.backward_coupled": coupled,
    "plan": planned,
    "Plan": lambda: print(planned(), file=io.StringIO()),
    "windows": lambda: [list(window) for window in gg.windows(X.split(2), size=2)],
    "Tally": lambda: gg.Tally(2.0, 4).mean,
    "decay": lambda: gg.decay(0.5),
    "stop_gradient": lambda: gg.stop_gradient(X.clone().requires_grad_()),
    "scale_gradient": lambda: gg.scale_gradient(X.clone().requires_grad_(), 0.5).sum().backward(),
    "reverse_gradient": lambda: gg.reverse_gradient(X.clone().requires_grad_()).sum().backward(),
    "mask_gradient": lambda: gg.mask_gradient(X.clone().requires_grad_(), X > 0.5).sum().backward(),
    "clip_gradient": lambda: gg.clip_gradient(X.clone().requires_grad_(), max_norm=1.0).sum().backward(),
    "frozen": frozen,
    "scaled": scaled,
    "train_rows": rows,
    "flow": lambda: str(flow()),
    "expect_flow": expected,
    "watch": watched,
    "gates.Flow": lambda: repr(flow()),
    "gates.Frozen": lambda: repr(gg.frozen(undrawn(net))),
    "gates.Reach": lambda: [str(reach) for reach in flow().parameters],
    "gates.ScaledModules": lambda: repr(gg.scaled(Task().model, factor=0.5)),
    "gates.Stop": lambda: gg.gates.Stop("detached"),
    "gates.TrainedRows": lambda: repr(rows()),
    "losses.clip_loss": lambda: gg.losses.clip_loss(X.clone().requires_grad_(), X).backward(),
    "losses.info_nce": lambda: gg.losses.info_nce(X.clone().requires_grad_(), X).backward(),
    "losses.siglip_loss": lambda: gg.losses.siglip_loss(X.clone().requires_grad_(), X).backward(),
    "planning.MicroBatch": lambda: [micro.data for micro in split()],
    "planning.Split": lambda: len(split()),
    "planning.peak_memory": lambda: _peak(),
    "testing.Verdict": lambda: str(Task().checked(gg.testing.compare_update)),
    "testing.assert_exact_update": lambda: Task().checked(gg.testing.assert_exact_update),
    "testing.compare_update": lambda: Task(net).checked(gg.testing.compare_update),
    "accelerate.exact": lambda: beside(accelerated),
    "lightning.ExactAccumulation": lambda: fitted("ExactAccumulation"),
    "lightning.WatchGradients": lambda: fitted("WatchGradients", show=False),
    "transformers.WatchGradientsCallback": lambda: trained("watch"),
    "transformers.exact": lambda: trained("exact"),
}
# Calls that draw, to show that it would be noticed.
WRONG: dict[str, Callable[[], object]] = {
    "torch": lambda: nn.Linear(1, 1),
    "random": random.random,
    "numpy": lambda: numpy.random.permutation(3),
}


def _stepped(how: str, data: Any) -> Any:
    task = Task()
    return getattr(task.accumulator(), how)(task.loss, data)


def _peak() -> None:
    with gg.planning.peak_memory():
        mean().backward()


# -- the program ----------------------------------------------------------------------------------------


def _in_a_fork(call: Callable[[], object]) -> list[str]:
    """Call in a new process; return the generators that have moved, or what was raised."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        with os.fdopen(reading) as answer:
            text = answer.read()
        os.waitpid(pid, 0)
        result: list[str] = json.loads(text)
        return result
    sys.stdout = io.StringIO()
    before = states()
    try:
        call()
        result = moved(before, states())
    except BaseException:  # noqa: BLE001
        result = [traceback.format_exc()]
    with os.fdopen(writing, "w") as answer:
        json.dump(result, answer)
    os._exit(0)


if __name__ == "__main__":
    print(json.dumps({name: _in_a_fork(call) for name, call in {**CALLS, **WRONG}.items()}))
