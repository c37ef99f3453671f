"""What else a training of transformers does, with exact accumulation: losses, adapters, clipping, logs, errors."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as t
from accelerate import DistributedType
from torch import Tensor

from gradgate.errors import CountError, OptionError, UpdateError
from gradgate.integrations.transformers import WatchGradientsCallback, exact
from tests.integrations import exact_cases
from tests.integrations.text_models import model_of, texts

WRONG = 0.1


def run(name: str, exact: bool = True, **options: Any) -> float:
    return max(exact_cases.transformers(name, exact, **options))


def logged(trainer: Any, key: str) -> list[float]:
    return [entry[key] for entry in trainer.state.log_history if key in entry]


# -- losses ---------------------------------------------------------------------------------------------


class Averages(t.Trainer):
    """As custom losses are written: the mean of a micro-batch, by a loss of torch."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"])
        loss = F.cross_entropy(outputs.logits.flatten(0, 1), inputs["labels"].flatten())
        return (loss, outputs) if return_outputs else loss


class Divides(t.Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logits = model(input_ids=inputs["input_ids"]).logits
        total = F.cross_entropy(logits.flatten(0, 1), inputs["labels"].flatten(), reduction="sum")
        return total / num_items_in_batch


def aligned(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())


@pytest.mark.parametrize("kind", [Averages, Divides])
def test_a_loss_of_ones_own_may_average_or_divide_by_the_count(kind: type) -> None:
    assert run("bert", kind=kind, truth=aligned) < 1e-12
    if kind is Averages:
        assert run("bert", exact=False, kind=kind, truth=aligned) > WRONG


def plus_penalty(outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
    return (
        F.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten())
        + 0.1 * outputs["logits"].pow(2).mean()
    )


def test_a_count_that_nothing_proves_is_asked_for_and_taken() -> None:
    with pytest.raises(CountError, match=r"Pass the count: exact\(trainer, count=lambda inputs: "):
        run("bert tagger", func=plus_penalty)

    def pooled(outputs: Any, labels: Tensor, num_items_in_batch: Any) -> Tensor:
        each = F.cross_entropy(outputs["logits"].transpose(1, 2), labels, reduction="none")
        return each.sum(1).mean() / 7

    with pytest.raises(CountError, match=r"a loss was divided by 7, but its micro-batch holds \d+ items"):
        run("bert tagger", func=pooled)

    def truth(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return pooled({"logits": model(input_ids=x).logits}, y, None)

    found = run("bert tagger", func=pooled, truth=truth, count=lambda inputs: len(inputs["labels"]))
    assert found < 1e-12


# -- what else trains -----------------------------------------------------------------------------------


def test_the_mean_is_clipped_and_its_norm_and_its_loss_are_logged() -> None:
    trainers: list[Any] = []
    options: dict[str, Any] = {"logging_strategy": "steps", "logging_steps": 1, "max_grad_norm": 0.01}
    clipped = run("bert", before=trainers.append, **options)
    (trainer,) = trainers
    (x, y), model = texts("bert"), model_of("bert")
    losses = [model(input_ids=x[part], labels=y[part]).loss for part in (slice(16), slice(16, 26))]
    assert clipped > WRONG
    assert logged(trainer, "loss") == pytest.approx([float(loss.detach()) for loss in losses], rel=1e-4)
    for loss, norm in zip(losses, logged(trainer, "grad_norm"), strict=True):
        used = [p for p in model.parameters() if p.requires_grad]
        found = [g for g in torch.autograd.grad(loss, used, allow_unused=True) if g is not None]
        assert norm == pytest.approx(float(torch.nn.utils.get_total_norm(found)), rel=1e-6)


def bert_trainer(*callbacks: Any, kind: Any = t.Trainer, rate: float = 0.0, **options: Any) -> Any:
    x, y = texts("bert")
    data = [{"input_ids": row, "labels": label} for row, label in zip(x[:26], y[:26], strict=True)]
    arguments = t.TrainingArguments(
        "unused",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        learning_rate=rate,
        report_to=[],
        save_strategy="no",
        dataloader_pin_memory=False,
        **{"num_train_epochs": 1, "logging_strategy": "no", **options},
        **dict.fromkeys(("use_cpu", "disable_tqdm"), True),
    )
    return kind(
        model_of("bert"), arguments, train_dataset=data, eval_dataset=data[:8], callbacks=list(callbacks)
    )


def test_a_training_that_is_watched_and_exact_has_no_findings() -> None:
    for line, codes in ((lambda trainer: trainer, ["GG102"]), (exact, [])):
        watching = WatchGradientsCallback(show=False)
        line(bert_trainer(watching, num_train_epochs=3, rate=1e-3)).train()
        assert watching.report is not None
        assert [finding.code for finding in watching.report.findings] == codes


def test_a_training_that_failed_in_the_middle_of_a_window_can_begin_again() -> None:
    class Fails(t.Trainer):
        fails = True

        def training_step(self, *args: Any, **options: Any) -> Tensor:
            loss = super().training_step(*args, **options)
            if self.fails:
                self.fails = False
                raise ZeroDivisionError
            return loss

    def again(trainer: Any) -> None:
        with pytest.raises(ZeroDivisionError):
            trainer.train()

    assert run("bert", kind=Fails, before=again) < 1e-12


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")
def test_adapters_of_peft() -> None:
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(target_modules=["query", "value"], init_lora_weights=False, lora_dropout=0.0)

    def wrap(model: Any) -> Any:
        torch.manual_seed(1)
        return peft.get_peft_model(model, lora).double()

    assert run("bert", wrap=wrap) < 1e-12
    assert run("bert", exact=False, wrap=wrap) > WRONG


# -- what is refused ------------------------------------------------------------------------------------


def test_processes_that_shard_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = bert_trainer()
    monkeypatch.setattr(trainer.accelerator.state, "distributed_type", DistributedType.DEEPSPEED)
    with pytest.raises(OptionError, match="uses DEEPSPEED, but only a single device and DDP"):
        exact(trainer)


def weights_by_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    compute = t.Trainer.compute_loss

    def changed(self: Any, model: Any, inputs: Any, *args: Any, **options: Any) -> Any:
        self.turn = getattr(self, "turn", 0) + 1
        return compute(self, model, inputs, *args, **options)

    step = t.Trainer.training_step

    def scaled(self: Any, *args: Any, **options: Any) -> Any:
        self.current_gradient_accumulation_steps = 1 + getattr(self, "turn", 0)
        return step(self, *args, **options)

    monkeypatch.setattr(t.Trainer, "compute_loss", changed)
    monkeypatch.setattr(t.Trainer, "training_step", scaled)
    monkeypatch.setattr(t.Trainer, "loss_is_scaled_for_ga", False)


def computes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = model(**inputs).loss
        self.accelerator.backward(loss)
        return loss.detach()

    monkeypatch.setattr(t.Trainer, "training_step", changed)


def never_ends_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    step = t.Trainer.training_step

    def changed(self: Any, *args: Any, **options: Any) -> Any:
        self.accelerator.gradient_state._set_sync_gradients(False)
        return step(self, *args, **options)

    def stepped(self: Any, *args: Any) -> None:
        self.optimizer.optimizer.step()
        self.control.should_training_stop = True

    monkeypatch.setattr(t.Trainer, "training_step", changed)
    monkeypatch.setattr(t.Trainer, "floating_point_ops", stepped)


@pytest.mark.parametrize("change", [weights_by_turn, computes_elsewhere, never_ends_a_window])
def test_another_way_of_accumulating_is_an_error_that_names_the_version(
    change: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    trainer = exact(bert_trainer(rate=1.0))
    before = torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach().clone()
    with pytest.raises(UpdateError, match=rf"^transformers {t.__version__}: .* this version of transformers"):
        trainer.train()
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach())
