"""A count is read from a loss with class weights only if the whole window has the same weights."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import CountError
from tests.reference import assert_same
from tests.silence import no_warning

CLASSES = 3
LABELS = [torch.tensor([0, 1, 1, 2]), torch.tensor([0, 0, 0, 1, 2])]
FIXED = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)


def balanced(y: Tensor) -> Tensor:
    return len(y) / (CLASSES * y.bincount(minlength=CLASSES).double())


class Loss(nn.Module):
    """Class weights in a buffer, which moves with the module."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", FIXED.clone())

    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, weight=self.weight)  # type: ignore[arg-type]


LossFn = Callable[[Tensor, Tensor], Tensor]

SAME: dict[str, LossFn] = {
    "none": F.cross_entropy,
    "one tensor": nn.CrossEntropyLoss(weight=FIXED),
    "a buffer": Loss(),
    "made anew": lambda z, y: F.cross_entropy(z, y, weight=torch.tensor([0.5, 1.0, 2.0], dtype=z.dtype)),
    "converted": lambda z, y: F.cross_entropy(z, y, weight=FIXED.float().to(z.dtype)),
    "smoothed": nn.CrossEntropyLoss(weight=FIXED, label_smoothing=0.1),
}
OTHERS: dict[str, LossFn] = {
    "cross entropy": lambda z, y: F.cross_entropy(z, y, weight=balanced(y)),
    "smoothed": lambda z, y: F.cross_entropy(z, y, weight=balanced(y), label_smoothing=0.1),
    "nll": lambda z, y: F.nll_loss(z.log_softmax(1), y, weight=balanced(y)),
    "weights of positives": lambda z, y: F.binary_cross_entropy_with_logits(
        z, F.one_hot(y, CLASSES).double(), pos_weight=balanced(y)
    ),
}


def gradients(loss_fn: LossFn, count: Callable[[Tensor], object] = lambda y: None) -> list[Tensor]:
    torch.manual_seed(0)
    model, taken = nn.Linear(4, CLASSES).double(), list[Tensor]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *_: taken.extend(p.grad.clone() for p in model.parameters()))
    with gg.Accumulator(optimizer).update() as update:
        for y in update.micro_batches(LABELS):
            update.backward(loss_fn(model(samples(y)), y), count=count(y))  # type: ignore[arg-type]
    return taken


def samples(y: Tensor) -> Tensor:
    return torch.sin(torch.arange(4.0 * len(y)).double()).view(-1, 4) + y[:, None]


def true_gradients(loss_fn: LossFn) -> list[Tensor]:
    torch.manual_seed(0)
    model, y = nn.Linear(4, CLASSES).double(), torch.cat(LABELS)
    loss_fn(model(torch.cat([samples(part) for part in LABELS])), y).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", SAME)
def test_the_same_weights_in_the_whole_window_need_no_count(name: str) -> None:
    with no_warning():
        assert_same(gradients(SAME[name]), true_gradients(SAME[name]))


@pytest.mark.parametrize("name", OTHERS)
def test_other_weights_in_each_micro_batch_are_refused(name: str) -> None:
    with pytest.raises(CountError, match="an earlier loss in this window"):
        gradients(OTHERS[name])


def test_with_a_count_each_micro_batch_may_have_its_own() -> None:
    with no_warning():
        gradients(OTHERS["cross entropy"], count=lambda y: balanced(y)[y].sum())


def test_weights_that_change_in_place_are_refused() -> None:
    loss = Loss()

    def loss_fn(logits: Tensor, y: Tensor) -> Tensor:
        loss.weight.copy_(balanced(y))
        return loss(logits, y)  # type: ignore[no-any-return]

    with pytest.raises(CountError, match="an earlier loss"):
        gradients(loss_fn)
