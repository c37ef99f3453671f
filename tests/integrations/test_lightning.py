"""Watching the fits of a real Lightning trainer."""

import json
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import pytorch_lightning
import torch
from lightning.pytorch.callbacks import BackboneFinetuning, StochasticWeightAveraging
from torch import nn

from gradgate.errors import FindingError
from gradgate.integrations.lightning import WatchGradients
from tests.integrations import lightning_modules as modules

# Of the library itself, in every fit.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(isinstance.treespec|LeafSpec).*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings(
        "ignore:The number of training batches .* is smaller than the logging interval"
    ),
]


def fit(model: pl.LightningModule, *callbacks: Any, module: Any = pl, **options: Any) -> None:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = module.Trainer(
        accelerator="cpu",
        devices=1,
        enable_model_summary=False,
        callbacks=list(callbacks),
        **{"max_epochs": 2, "limit_val_batches": 2, **quiet, **options},
    )
    trainer.fit(model, modules.loader(), modules.loader() if isinstance(model, modules.Right) else None)


def found(watching: WatchGradients) -> list[tuple[str, int]]:
    assert watching.report is not None
    assert all(finding.file == modules.__file__ for finding in watching.report.findings)
    return [(finding.code, finding.line) for finding in watching.report.findings]


def line_of(code: str) -> int:
    lines = Path(modules.__file__).read_text("utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {code}")]
    return number


def test_a_right_module_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    watching = WatchGradients(raise_on="warning")
    fit(modules.Right(), watching, gradient_clip_val=1.0, max_epochs=4)
    assert found(watching) == []
    assert watching.report is not None
    assert watching.report.summary.steps == 32
    assert "No mistakes found.\nwatched  32 steps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "callbacks", "options"),
    [
        (modules.Gan, [], {}),
        (modules.Thawed, [BackboneFinetuning(unfreeze_backbone_at_epoch=2)], {}),
        (modules.Right, [StochasticWeightAveraging(1e-2, swa_epoch_start=2)], {}),
        (
            modules.Right,
            [],
            {"accumulate_grad_batches": 2, "limit_train_batches": 6, "precision": "bf16-mixed"},
        ),
    ],
    ids=["gan", "finetuning", "averaging", "accumulating"],
)
def test_what_lightning_does_by_itself_is_no_mistake(
    module: type, callbacks: list[Any], options: dict[str, Any]
) -> None:
    watching = WatchGradients(show=False)
    fit(module(), watching, *callbacks, max_epochs=4, **options)
    assert found(watching) == []


@pytest.mark.parametrize(
    ("module", "code"),
    [
        (modules.HeadForgotten, "GG501"),
        (modules.BodyDetached, "GG402"),
    ],
)
def test_a_mistake_is_found_at_its_line(module: type[modules.Right], code: str) -> None:
    watching = WatchGradients(show=False)
    fit(module(), watching)
    assert found(watching) == [(code, line_of(code))]


def test_a_mistake_that_is_the_trainers_own_is_found_where_it_is_called() -> None:
    watching = WatchGradients(show=False)
    fit(modules.Right(), watching, accumulate_grad_batches=3, limit_train_batches=7)
    assert watching.report is not None
    (finding,) = watching.report.findings
    assert (finding.code, finding.file) == ("GG103", __file__)
    assert finding.message.startswith("The last window holds 1 micro-batch but is divided by 3")
    assert "Trainer(..., callbacks=[gradgate.integrations.lightning.ExactAccumulation()])" in finding.advice


def test_a_division_beside_the_trainers_is_found_at_its_line() -> None:
    watching = WatchGradients(show=False)
    fit(modules.DividedTwice(), watching, accumulate_grad_batches=3, limit_train_batches=6)
    assert found(watching) == [("GG102", line_of("GG102"))]
    assert watching.report is not None
    (finding,) = watching.report.findings
    assert finding.advice == "Don't divide here: Lightning's Trainer already divides."


def test_the_parameters_are_those_of_a_fit_that_nobody_watches() -> None:
    weights = []
    for callbacks in ([], [WatchGradients(show=False)]):
        torch.manual_seed(0)
        model = modules.Right()
        fit(model, *callbacks, accumulate_grad_batches=2)
        weights.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    assert torch.equal(*weights)


def test_a_fit_that_raises_ends_the_watching_and_its_error_goes_on(tmp_path: Path) -> None:
    watching = WatchGradients(raise_on="error", output=tmp_path / "report.json", show=False)
    with pytest.raises(ZeroDivisionError):
        fit(modules.Fails(), watching)
    assert repr(watching) != "WatchGradients(watching)"
    summary = json.loads((tmp_path / "report.json").read_text("utf-8"))["summary"]
    assert (summary["outcome"], summary["steps"]) == ("failed", 5)


def test_findings_raise_as_told_when_the_report_is_written(tmp_path: Path) -> None:
    watching = WatchGradients(raise_on="error", output=tmp_path / "report.sarif", show=False)
    with pytest.raises(FindingError, match="GG501 param-not-in-optimizer"):
        fit(modules.HeadForgotten(), watching)
    (run,) = json.loads((tmp_path / "report.sarif").read_text("utf-8"))["runs"]
    assert [result["ruleId"] for result in run["results"]] == ["GG501"]
    fit(modules.HeadForgotten(), WatchGradients(raise_on="error", ignore="GG501", show=False))


def test_it_serves_the_trainer_of_pytorch_lightning_too() -> None:
    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(8, 3)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    watching = WatchGradients(show=False)
    fit(Module(), watching, module=pytorch_lightning)
    assert watching.report is not None
    assert (watching.report.findings, watching.report.summary.steps) == ((), 16)
