"""Whatever changes a window's gradients, other than the trainer's own backward, is an error before the step."""

from typing import Any

import pytest
import torch
import transformers as t
from torch import Tensor

from gradgate.errors import GradientError, UpdateError
from gradgate.integrations.lightning import ExactAccumulation
from gradgate.integrations.transformers import exact
from tests.integrations.test_exact_lightning import Module, received
from tests.integrations.test_exact_transformers import bert_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*(isinstance.treespec|LeafSpec).*"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:The number of training batches .* is smaller than the logging"),
]

# -- Lightning ------------------------------------------------------------------------------------------


class BackwardInTheStep(Module):
    def training_step(self, batch: Any, index: int) -> Any:
        loss = super().training_step(batch, index)
        loss.backward(retain_graph=True)
        return loss


class Clips(Module):
    def on_after_backward(self) -> None:
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.01)


class Clears(Module):
    def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
        self.zero_grad()


class ScalesItsBackward(Module):
    def backward(self, loss: Tensor) -> None:
        (loss * 0.5).backward()


class EvaluatesTheClosureAgain(Module):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), max_iter=2)


@pytest.mark.parametrize(
    ("kind", "raised", "says"),
    [
        (BackwardInTheStep, GradientError, "filled by another backward call"),
        (Clips, GradientError, "clipped"),
        (Clears, GradientError, "cleared"),
        (ScalesItsBackward, UpdateError, "each loss was multiplied by 0.125 after it was returned"),
        (EvaluatesTheClosureAgain, GradientError, r"needs accumulate_grad_batches=1"),
    ],
)
def test_what_changes_the_sum_of_lightning_is_an_error_before_the_step(
    kind: Any, raised: Any, says: str
) -> None:
    module = kind(rate=1.0)
    before = torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()
    with pytest.raises(raised, match=says):
        received(module, ExactAccumulation())
    if not issubclass(kind, EvaluatesTheClosureAgain):  # LBFGS moves parameters before it evaluates again
        assert torch.equal(before, torch.nn.utils.parameters_to_vector(module.parameters()).detach())


# -- transformers ---------------------------------------------------------------------------------------


def _backward(trainer: Any, model: Any, loss: Tensor) -> Tensor:
    trainer.accelerator.backward(loss / trainer.current_gradient_accumulation_steps)
    return loss.detach()


class ComputesTwice(t.Trainer):
    """As adversarial training of embeddings does."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        for _ in range(2):
            loss = _backward(self, model, self.compute_loss(model, inputs))
        return loss


class Regularizes(t.Trainer):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = super().training_step(model, inputs, num_items_in_batch)
        _backward(self, model, sum(p.square().sum() for p in model.parameters()))
        return loss


class AddsATerm(t.Trainer):
    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        loss = self.compute_loss(model, inputs)
        return _backward(self, model, loss + next(model.parameters()).sum())


class ClipsBetween(t.TrainerCallback):
    def on_substep_end(self, *args: Any, model: Any, **options: Any) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)


@pytest.mark.parametrize(
    ("kind", "callbacks", "raised", "says"),
    [
        (ComputesTwice, [], UpdateError, "training_step calls compute_loss twice"),
        (Regularizes, [], UpdateError, "training_step calls accelerator.backward twice"),
        (AddsATerm, [], UpdateError, "adds terms to the loss after compute_loss has returned it"),
        (t.Trainer, [ClipsBetween()], GradientError, "clipped"),
    ],
)
def test_a_training_step_that_is_not_one_mean_is_an_error_before_the_step(
    kind: Any, callbacks: Any, raised: Any, says: str
) -> None:
    trainer = exact(bert_trainer(*callbacks, kind=kind, rate=1.0))
    before = torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach().clone()
    with pytest.raises(raised, match=says):
        trainer.train()
    assert torch.equal(before, torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach())
