"""Watching the trainings of transformers' real Trainer."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainingArguments,
)

from gradgate.errors import CountError
from gradgate.integrations.transformers import WatchGradientsCallback, exact
from tests.interpreter import python


def causal_lm() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=40, **sizes, **heads))


def texts() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(40, (20, 12), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(
    *callbacks: Any, kind: type[Trainer] = Trainer, model: Any = None, folder: str = "unused", **options: Any
) -> Trainer:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        dataloader_pin_memory=False,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        num_train_epochs=2,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        **options,
    )
    return kind(
        model or causal_lm(),
        arguments,
        train_dataset=texts(),
        eval_dataset=texts()[:4],
        callbacks=list(callbacks),
    )


def found(watching: WatchGradientsCallback) -> list[tuple[str, str, int]]:
    assert watching.report is not None
    return [(finding.code, finding.file, finding.line) for finding in watching.report.findings]


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text("utf-8").splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")]
    return number


def next_token_loss(logits: Tensor, labels: Tensor, **how: Any) -> Tensor:
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), **how)


class Undivided(Trainer):
    """As many custom losses are: the count is taken, which tells Trainer not to divide, and not used."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logits = model(input_ids=inputs["input_ids"]).logits
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())  # GG102


class DividedTwice(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        loss = next_token_loss(model(input_ids=inputs["input_ids"]).logits, inputs["labels"])
        loss = loss / self.args.gradient_accumulation_steps  # twice
        return (loss, {}) if return_outputs else loss


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        logits, target = model(input_ids=inputs["input_ids"]).logits[:, :-1], inputs["labels"][:, 1:]
        losses = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none")
        return (losses * (1.0 + (target.flatten() > 30))).mean()  # weighted


class Detached(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        features = model.model(inputs["input_ids"]).last_hidden_state.detach()  # GG402
        logits = model.lm_head(features)
        return next_token_loss(logits, inputs["labels"], reduction="sum") / num_items_in_batch


class Fails(Trainer):
    steps = 0

    def training_step(self, *args: Any, **options: Any) -> Tensor:
        self.steps += 1
        if self.steps == 10:
            raise ZeroDivisionError
        return super().training_step(*args, **options)


def test_a_right_training_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    watching = WatchGradientsCallback(raise_on="warning")
    trainer(watching, eval_strategy="epoch").train()
    assert found(watching) == []
    assert watching.report is not None
    assert (watching.report.summary.steps, watching.report.summary.backwards) == (6, 20)
    verdict = "No mistakes found, but this run is too short: some rules need 8 steps."
    assert f"{verdict}\nwatched  6 steps, 20 backward calls" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "code"), [(Undivided, "GG102"), (Detached, "GG402")])
def test_a_mistake_is_found_at_its_line(kind: type[Trainer], code: str) -> None:
    watching = WatchGradientsCallback(show=False)
    trainer(watching, kind=kind).train()
    assert found(watching) == [(code, __file__, line_of(code))]


def test_a_division_beside_the_trainers_is_found_at_its_line() -> None:
    watching, model = WatchGradientsCallback(show=False), causal_lm()
    model.accepts_loss_kwargs = False
    trainer(watching, kind=DividedTwice, model=model, max_steps=2).train()
    assert found(watching) == [("GG102", __file__, line_of("twice"))]
    assert watching.report is not None
    (finding,) = watching.report.findings
    assert finding.advice == "Don't divide here: the Trainer already divides."
    assert [(each.line, each.new) for each in finding.fix] == [(line_of("twice"), "loss")]  # type: ignore[union-attr]


def test_the_advice_passes_the_count_that_the_graph_of_a_custom_loss_does_not_show() -> None:
    watching = WatchGradientsCallback(show=False)
    trainer(watching, kind=Weighted).train()
    assert found(watching) == [("GG102", __file__, line_of("weighted"))]
    assert watching.report is not None
    (finding,) = watching.report.findings
    assert "count=lambda inputs: (inputs['labels'] != -100).sum()" in finding.advice
    with pytest.raises(CountError):
        exact(trainer(kind=Weighted)).train()
    run = exact(trainer(kind=Weighted), count=lambda inputs: (inputs["labels"][:, 1:] != -100).sum())
    run.train()
    assert run.state.global_step == 6


def test_a_model_that_takes_the_count_and_does_not_divide_by_it_is_found_where_it_is_trained() -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    watching = WatchGradientsCallback(show=False)
    run = trainer(watching, model=BertForMaskedLM(BertConfig(vocab_size=40, **sizes)))
    run.train()  # BERT
    assert found(watching) == [("GG102", __file__, line_of("BERT"))]
    assert watching.report is not None
    (finding,) = watching.report.findings
    assert finding.severity == "error"
    assert "trainer = gradgate.integrations.transformers.exact(trainer)" in finding.advice


def test_the_parameters_are_those_of_a_training_that_nobody_watches() -> None:
    weights = []
    for callbacks in ([], [WatchGradientsCallback(show=False)]):
        model = causal_lm()
        trainer(*callbacks, model=model).train()
        weights.append(nn.utils.parameters_to_vector(model.parameters()).detach())
    assert torch.equal(*weights)


def failed(**options: Any) -> WatchGradientsCallback:
    watching = WatchGradientsCallback(show=False, **options)
    with pytest.raises(ZeroDivisionError):
        trainer(watching, kind=Fails).train()
    return watching


def test_a_training_that_raised_is_over_when_the_report_is_asked_for(tmp_path: Path) -> None:
    watching = failed(raise_on="error", output=tmp_path / "report.json")
    assert repr(watching) == "WatchGradientsCallback(watching)"
    assert watching.report is not None
    assert (watching.report.summary.outcome, watching.report.summary.steps) == ("failed", 2)
    assert repr(watching) != "WatchGradientsCallback(watching)"
    assert json.loads((tmp_path / "report.json").read_text("utf-8"))["summary"]["steps"] == 2


def test_a_script_that_fails_still_gets_its_findings(tmp_path: Path) -> None:
    script = """
        from gradgate.integrations.transformers import WatchGradientsCallback
        from tests.integrations.test_transformers import Fails, Undivided, trainer
        class Both(Fails, Undivided): pass
        trainer(WatchGradientsCallback(), kind=Both).train()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(script), "utf-8")
    here = str(Path(__file__).parents[2])
    program = f"import sys; sys.path.insert(0, {here!r}); exec(open('train.py').read())"
    done = python("-c", program, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("ZeroDivisionError\n")
    assert "GG102 accumulation-scaling" in done.stdout
    assert "the loop failed after 2 steps" in done.stdout
