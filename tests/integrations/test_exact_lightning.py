"""What else a fit of Lightning does, with exact accumulation: precision, clipping, schedules, resuming, errors."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from lightning.pytorch.loops.optimization.automatic import _AutomaticOptimization
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor

from gradgate.errors import (
    CountError,
    CoupledLossWarning,
    OptionError,
    UpdateError,
)
from gradgate.integrations.lightning import ExactAccumulation, WatchGradients
from tests.integrations.exact_cases import LABELS, QUIET, TEXTS, error, gradients, net, squares, tokens

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(isinstance.treespec|LeafSpec).*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging"),
]
STARTS = (0, 5, 8, 12, 13, 19, 21)  # of micro-batches: windows of four and of two
BATCHES = [(TEXTS[a:b], LABELS[a:b]) for a, b in pairwise(STARTS)]
WINDOWS = (TEXTS[:13], LABELS[:13]), (TEXTS[13:], LABELS[13:])


class Loader(list[tuple[Tensor, Tensor]]):
    """Continues where it was saved, as a loader does that can resume."""

    start = 0

    def __iter__(self) -> Any:
        start, self.start = self.start, 0
        for position in range(start, len(self)):
            self.position = position
            yield self[position]

    def state_dict(self) -> dict[str, int]:
        return {"start": self.position + 1}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["start"]


class Module(pl.LightningModule):
    def __init__(self, loss: Callable[..., Any] = tokens, *, rate: float = 0.0) -> None:
        super().__init__()
        self.net, self.loss, self.rate = net(), loss, rate
        self.optimizer = torch.optim.SGD(self.parameters(), lr=rate, momentum=0.9)

    def training_step(self, batch: Any, index: int) -> Any:
        loss = self.loss(self.net, *batch)
        self.log("loss", loss.detach() if isinstance(loss, Tensor) else 0.0)
        return loss

    def configure_optimizers(self) -> Any:
        schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.5)
        return {
            "optimizer": self.optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }


def trainer(*callbacks: Any, **options: Any) -> pl.Trainer:
    ready = {"accelerator": "cpu", "devices": 1, "max_epochs": 1, "accumulate_grad_batches": 4, **QUIET}
    return pl.Trainer(callbacks=list(callbacks), **{**ready, **options})


def received(module: Module, *callbacks: Any, **options: Any) -> list[list[Tensor]]:
    return gradients(module.optimizer, lambda: trainer(*callbacks, **options).fit(module, Loader(BATCHES)))


def wanted(module: Module) -> list[tuple[Tensor, ...]]:
    return [
        torch.autograd.grad(module.loss(module.net, *window), [*module.parameters()]) for window in WINDOWS
    ]


def test_nothing_of_it_is_left_on_the_strategy() -> None:
    fitted = trainer(ExactAccumulation())
    before = set(vars(fitted.strategy))
    fitted.fit(Module(), Loader(BATCHES))
    assert {name for name in set(vars(fitted.strategy)) - before if "gradgate" in name} == set()
    assert not hasattr(fitted.strategy, "gradgate_mean")


def test_the_mean_is_clipped_once() -> None:
    module = Module()
    found = received(module, ExactAccumulation(), gradient_clip_val=0.01)
    for ours, truth in zip(found, wanted(module), strict=True):
        norm = torch.nn.utils.get_total_norm(truth)
        assert error(ours, tuple(0.01 / (norm + 1e-6) * gradient for gradient in truth)) < 1e-12


@pytest.mark.parametrize("kind", ["16-mixed", "bf16-mixed"])
def test_mixed_precision_keeps_its_loss_scale_and_its_rounding(kind: Any) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if kind == "16-mixed" else None
    within = 2.0**-6 if kind == "bf16-mixed" else 2.0**-9  # of the type of the forward pass
    module = Module(lambda model, x, y: tokens(model, x, y)).float()
    found = received(module, ExactAccumulation(), plugins=[MixedPrecision(kind, "cpu", scaler)])
    assert max(error(*pair) for pair in zip(found, wanted(module), strict=True)) < within
    assert scaler is None or scaler.get_scale() == 2.0**10


def test_schedulers_loggers_and_progress_go_on_as_before() -> None:
    fits = []
    for callbacks in ([], [ExactAccumulation()]):
        module = Module(rate=1.0)
        module.optimizer.param_groups[0]["lr"] = 1e-9
        fit = trainer(*callbacks, max_epochs=2)
        fit.fit(module, Loader(BATCHES))
        rate = module.optimizer.param_groups[0]["lr"]
        fits.append((rate, fit.global_step, round(float(fit.callback_metrics["loss"]), 6)))
        assert type(fit.strategy).__name__ == "SingleDeviceStrategy"
    assert fits[0] == fits[1]
    assert fits[0][1] == 4


def test_a_fit_that_resumes_in_the_middle_of_an_epoch_ends_in_the_same_parameters(tmp_path: Path) -> None:
    class Save(pl.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == 1 and not (tmp_path / "middle.ckpt").exists():
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    ends = []
    for saving, path in ((True, None), (False, tmp_path / "middle.ckpt")):
        module = Module(rate=0.1)
        fit = trainer(ExactAccumulation(), *([Save()] if saving else []), max_epochs=2)
        fit.fit(module, Loader(BATCHES), ckpt_path=path)
        ends.append(torch.nn.utils.parameters_to_vector(module.parameters()).detach())
    assert torch.equal(*ends)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_micro_batch_that_training_step_skips_does_not_count() -> None:
    def skipping(model: Any, x: Tensor, y: Tensor) -> Tensor | None:
        return None if len(x) == 4 else tokens(model, x, y)

    module = Module(skipping)
    found = received(module, ExactAccumulation())
    kept = torch.cat([TEXTS[:8], TEXTS[12:13]]), torch.cat([LABELS[:8], LABELS[12:13]])
    truth = torch.autograd.grad(tokens(module.net, *kept), [*module.parameters()])
    assert error(found[0], truth) < 1e-12


def pooled(model: Any, x: Tensor, y: Tensor) -> Tensor:
    valid = y != -100
    each = F.cross_entropy(model(x).transpose(1, 2), y.clamp(min=0), reduction="none")
    return (each * valid).sum() / valid.sum()  # the graph does not say what the divisor is


def test_a_count_that_the_graph_does_not_prove_is_asked_for_and_taken() -> None:
    with pytest.raises(CountError, match=r"Pass the count: ExactAccumulation\(count=lambda batch: "):
        received(Module(pooled), ExactAccumulation())
    module = Module(pooled)
    found = received(module, ExactAccumulation(lambda batch: (batch[1] != -100).sum()))
    assert max(error(*pair) for pair in zip(found, wanted(module), strict=True)) < 1e-12


def contrastive(model: Any, x: Tensor, y: Tensor) -> Tensor:
    z = model(x).mean(1)
    return F.cross_entropy(z @ z.T, torch.arange(len(z)))


def root(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.mse_loss(model(x[:, 0]), torch.ones(len(x), 9).double()).sqrt()


@pytest.mark.parametrize(
    ("loss", "says"), [(contrastive, "compares the items"), (root, "nonlinear function")]
)
def test_losses_that_no_count_makes_exact_are_warned_of(loss: Any, says: str) -> None:
    with pytest.warns(CoupledLossWarning, match=f"^lightning: .*{says}.* in a loop of your own: update"):
        received(Module(loss), ExactAccumulation(lambda batch: len(batch[0])))


def balanced(model: Any, x: Tensor, y: Tensor) -> Tensor:
    weight = 1.0 / torch.bincount(y[:, 0], minlength=9).clamp(min=1).double()
    return F.cross_entropy(model(x[:, 0]), y[:, 0], weight)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (balanced, r"^lightning: count is missing, and this loss has weight=\["),
        (lambda *batch: F.mse_loss(squares(*batch).reshape(1), torch.zeros(1), reduction="sum"), "is a sum"),
        (lambda model, x, y: tokens(model, x, torch.full_like(y, -100)), "have count 0"),
        (lambda *batch: tokens(*batch) / 4, "is a mean divided by 4"),
    ],
)
def test_what_cannot_be_exact_is_an_error_before_the_step(loss: Any, says: str) -> None:
    module = Module(loss, rate=1.0)
    before = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    with pytest.raises(CountError, match=says):
        received(module, ExactAccumulation())
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(module.parameters()).detach())


def test_manual_optimization_is_told_to_use_an_accumulator() -> None:
    module = Module()
    module.automatic_optimization = False
    with pytest.raises(OptionError, match=r"Use a gg.Accumulator there"):
        trainer(ExactAccumulation(), accumulate_grad_batches=1).fit(module, Loader(BATCHES))


def test_a_strategy_that_shards_is_refused() -> None:
    class FSDPStrategy:
        pass

    fit = SimpleNamespace(strategy=FSDPStrategy())
    with pytest.raises(OptionError, match="FSDPStrategy is not supported"):
        ExactAccumulation().setup(fit, Module(), "fit")


def test_a_fit_that_is_watched_and_exact_has_no_findings() -> None:
    for callbacks, codes in (([], ["GG103"]), ([ExactAccumulation()], [])):
        watching = WatchGradients(show=False)
        trainer(watching, *callbacks, max_epochs=3).fit(Module(rate=0.1), Loader(BATCHES))
        assert watching.report is not None
        assert [finding.code for finding in watching.report.findings] == codes


# -- a version of Lightning that accumulates differently ------------------------------------------------


def divides_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    divided = _AutomaticOptimization._training_step

    def changed(self: Any, kwargs: Any) -> Any:
        result = divided(self, kwargs)
        result.closure_loss = result.closure_loss / (1 + kwargs["batch_idx"])
        return result

    monkeypatch.setattr(_AutomaticOptimization, "_training_step", changed)


def goes_past_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(self: Any, kwargs: Any) -> Any:
        output = self.trainer.lightning_module.training_step(*kwargs.values())
        return self.output_result_cls.from_training_step_output(output, 4)

    monkeypatch.setattr(pl.LightningModule, "log", lambda *_: None)
    monkeypatch.setattr(_AutomaticOptimization, "_training_step", changed)


def steps_without_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(self: Any, epoch: int, index: int, optimizer: Any, closure: Any) -> None:
        optimizer.optimizer.step(closure=closure)

    monkeypatch.setattr(pl.LightningModule, "optimizer_step", changed)


@pytest.mark.parametrize("change", [divides_by_position, goes_past_the_strategy, steps_without_the_strategy])
def test_another_way_of_accumulating_is_an_error_that_names_the_version(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    module = Module(rate=1.0)
    before = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    with pytest.raises(UpdateError, match=rf"^lightning {pl.__version__}: .* this version of lightning"):
        received(module, ExactAccumulation())
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(module.parameters()).detach())
