"""How many items: as given, or as torch's own loss divided by; never guessed."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gradgate.errors import CountError
from tests.accumulation.one_weight import one_weight, update_by
from tests.tensors import labels, ones, rand, randn, tensor, zeros

CLASSES = 4

# A mean loss over 6 rows of 4 columns, and the number that torch divides by. None: not known, so asked for.
LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], float | None]] = {
    "mean": (lambda x: x.mean(), 24),
    "mean of squared differences": (lambda x: (x - 1).pow(2).mean(), 24),
    "mean of row sums": (lambda x: x.sum(1).mean(), 6),
    "mean of row sums, counted from the end": (lambda x: x.sum(-1).mean(), 6),
    "mean of row norms": (lambda x: x.norm(dim=1).mean(), 6),
    "mean of row logsumexps": (lambda x: x.logsumexp(1).mean(), 6),
    "mean of running row sums": (lambda x: x.cumsum(1).mean(), None),
    "mean over the unmasked": (lambda x: x[torch.arange(6) < 5].mean(), 20),
    "mse": (lambda x: F.mse_loss(x, zeros(6, CLASSES)), 24),
    "l1": (lambda x: F.l1_loss(x, zeros(6, CLASSES)), 24),
    "smooth l1": (lambda x: F.smooth_l1_loss(x, zeros(6, CLASSES)), 24),
    "huber": (lambda x: F.huber_loss(x, zeros(6, CLASSES)), 24),
    "bce": (lambda x: F.binary_cross_entropy(x.sigmoid(), ones(6, CLASSES)), 24),
    "bce with logits": (lambda x: F.binary_cross_entropy_with_logits(x, ones(6, CLASSES)), 24),
    "bce, weighted": (
        lambda x: F.binary_cross_entropy_with_logits(x, ones(6, CLASSES), weight=rand(6, 1)),
        24,  # torch divides by the elements, whatever their weights
    ),
    "soft margin": (lambda x: F.soft_margin_loss(x, ones(6, CLASSES)), 24),
    "triplet": (lambda x: F.triplet_margin_loss(x, x + 1, x * 2), 6),
    "poisson": (lambda x: F.poisson_nll_loss(x, ones(6, CLASSES)), 24),
    "cross entropy": (lambda x: F.cross_entropy(x, labels([0, 1, 2, 3, 0, 1])), 6),
    "cross entropy, some ignored": (lambda x: F.cross_entropy(x, labels([0, -100, 2, -100, 0, 1])), 4),
    "cross entropy, another ignored": (
        lambda x: F.cross_entropy(x, labels([0, 1, 2, 3, 0, 1]), ignore_index=0),
        4,
    ),
    "cross entropy, class weights": (
        lambda x: F.cross_entropy(x, labels([0, 1, 2, 3, 0, -100]), weight=tensor([0.5, 1.0, 2.0, 4.0])),
        0.5 + 1 + 2 + 4 + 0.5,
    ),
    "cross entropy, 2-D": (lambda x: F.cross_entropy(x.reshape(3, 4, 2), labels([[0, 1]] * 3)), 6),
    "cross entropy, one sample": (lambda x: F.cross_entropy(x[0], labels(1)), 1),
    "nll": (lambda x: F.nll_loss(x.log_softmax(1), labels([0, 1, 2, 3, 0, -100])), 5),
    # What the graph does not tell:
    "label smoothing": (lambda x: F.cross_entropy(x, labels([0, 1, 2, 3, 0, 1]), label_smoothing=0.1), None),
    "class probabilities": (lambda x: F.cross_entropy(x, torch.full_like(x, 0.25).detach()), None),
    "batch mean": (lambda x: F.kl_div(x.log_softmax(1), rand(6, CLASSES), reduction="batchmean"), None),
    "a product": (lambda x: F.mse_loss(x, zeros(6, CLASSES)) * 2, None),
    "a sum of losses": (lambda x: F.mse_loss(x, zeros(6, CLASSES)) + x.mean(), None),
    "nanmean": (lambda x: x.nanmean(), None),
    # Means, but not over the items of the batch:
    "mean of one number": (lambda x: F.cross_entropy(x, labels([0, 1, 2, 3, 0, 1])).mean(), None),
    "mean of one number, unsqueezed": (lambda x: F.mse_loss(x, zeros(6, CLASSES)).unsqueeze(0).mean(), None),
    "mean of two losses": (lambda x: torch.stack([x.mean(), x.pow(2).mean()]).mean(), None),
    "mean of columns' means": (lambda x: x.mean(0).mean(), None),
    "mean of columns' sums": (lambda x: x.sum(0).mean(), None),
    "mean of columns' norms": (lambda x: x.norm(dim=-2).mean(), None),
    "mean of a repeated mean": (lambda x: x.mean().expand(7).mean(), None),
    "mean of a weight-normed weight": (lambda x: torch._weight_norm(x, x[:, :1].detach(), 0).mean(), None),
}


def count_of(loss: Callable[[Tensor], Tensor]) -> float:
    weight, _, accumulator = one_weight()
    x = randn(6, CLASSES)
    with accumulator.update() as update:
        update.backward(loss(x * weight.exp()))
    return update.count


@pytest.mark.parametrize("name", [name for name, (_, count) in LOSSES.items() if count is not None])
def test_a_mean_loss_says_what_it_was_divided_by(name: str) -> None:
    loss, expected = LOSSES[name]
    assert count_of(loss) == expected


@pytest.mark.parametrize("name", [name for name, (_, count) in LOSSES.items() if count is None])
def test_a_loss_that_does_not_say_is_asked_for_its_count(name: str) -> None:
    with pytest.raises(CountError, match=r"count is missing, and the loss ends in \w+, which does not say"):
        count_of(LOSSES[name][0])


def test_a_count_that_is_given_goes_before_what_the_graph_says() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        update.backward((weight * ones(3)).mean(), count=7)
    assert update.count == 7


def test_every_ignored_target_makes_a_count_of_zero_and_no_nan() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        for y in update.micro_batches([labels([-100, -100]), labels([0, -100])]):
            update.backward(F.cross_entropy(weight * tensor([[1.0, 0.0], [5.0, 0.0]]), y))
    assert update.count == 1
    assert weight.item() == pytest.approx(0.5)  # the gradient of -log softmax at equal logits
    assert update.loss == pytest.approx(math.log(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_16_bit_loss_counts_more_targets_than_it_can_save(dtype: torch.dtype) -> None:
    """It saves 2049 as 2048, and 513 in bfloat16 as 512."""
    weight, _, accumulator = one_weight()
    logits = (weight * zeros(2049 + 3, 2)).to(dtype)
    with accumulator.update() as update:
        update.backward(F.cross_entropy(logits, labels([0] * 2049 + [-100] * 3)))
    assert update.count == 2049


def test_a_16_bit_weighted_loss_is_asked_for_its_count() -> None:
    weight, _, accumulator = one_weight()
    logits = (weight * zeros(3, 2)).bfloat16()
    classes = ones(2, dtype=torch.bfloat16)
    with pytest.raises(CountError, match="count is missing"), accumulator.update() as update:
        update.backward(F.cross_entropy(logits, labels([0, 1, 0]), weight=classes))


@pytest.mark.parametrize(
    "count",
    [
        5,
        5.0,
        labels(5),
        labels([5]),
        tensor(5.0),
        tensor([[5.0]]),
        torch.tensor(5, dtype=torch.int16),
        tensor(5.0).requires_grad_(),
    ],
    ids=repr,
)
def test_a_count_is_a_number_or_a_tensor_of_one(count: object) -> None:
    weight, _, accumulator = one_weight()
    assert update_by(accumulator, weight, [(1.0, 15), (5.0, count)]).count == 20
    assert weight.item() == -2.0


def test_a_count_can_come_from_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    weight, _, accumulator = one_weight()
    assert update_by(accumulator, weight, [(1.0, numpy.int64(3)), (5.0, numpy.float32(1))]).count == 4
    assert weight.item() == -2.0


@pytest.mark.parametrize(
    ("count", "complaint"),
    [
        (-1, "count is -1, it must be finite and at least 0"),
        (labels(-1), "count is -1, it must be finite and at least 0"),
        (math.nan, "count is nan"),
        (math.inf, "count is inf"),
        (tensor(math.nan), "count is nan"),
        (True, "count is True, a number or a tensor of one element is needed"),
        (labels(1) > 0, "count is True"),
        ("3", "count is '3', a number"),
        (labels([1, 2]), r"count has shape \[2\], one number is needed"),
        (labels([]), r"count has shape \[0\]"),
        (torch.tensor(1j), "count is 1j"),
    ],
    ids=repr,
)
def test_anything_else_is_refused(count: object, complaint: str) -> None:
    weight, _, accumulator = one_weight()
    with pytest.raises(CountError, match=complaint):
        update_by(accumulator, weight, [(1.0, count)])
    assert weight.item() == 0.0
    assert weight.grad is None


def test_a_sum_does_not_tell_its_count() -> None:
    weight, _, accumulator = one_weight()
    with pytest.raises(CountError, match="a sum does not say"), accumulator.update() as update:
        update.backward((weight * ones(3)).sum(), reduction="sum")


@pytest.mark.parametrize(("said", "is_one"), [("mean", "sum"), ("sum", "mean")])
def test_a_loss_that_knows_better_contradicts_the_reduction(said: str, is_one: str) -> None:
    weight, _, accumulator = one_weight()
    loss = F.mse_loss(weight * ones(3), ones(3), reduction=is_one)
    complaint = f"loss is a {is_one} .MseLossBackward0., but reduction is '{said}'"
    with pytest.raises(CountError, match=complaint), accumulator.update() as update:
        update.backward(loss, count=3, reduction=said)  # type: ignore[arg-type]
    assert weight.item() == 0.0


@pytest.mark.parametrize("window", [[], [(1.0, 0)], [(1.0, 0), (2.0, 0), (3.0, labels(0))]])
def test_a_window_without_items_is_an_error_and_no_step(window: list[tuple[float, object]]) -> None:
    weight, optimizer, accumulator = one_weight()
    optimizer.register_step_pre_hook(lambda *_: pytest.fail("stepped"))
    complaint = rf"every .* has count 0 \({len(window)} came\)" if window else "no backward came"
    with pytest.raises(CountError, match=complaint):
        update_by(accumulator, weight, window)
    assert weight.grad is None


def test_an_empty_micro_batch_needs_no_graph() -> None:
    weight, _, accumulator = one_weight()
    with accumulator.update() as update:
        update.micro_batches([0, 1])
        update.backward(tensor(math.nan), count=0, name="loss")
        update.backward(weight * 3, count=2, name="loss")
    assert (weight.item(), update.count, update.loss) == (-3.0, 2, 0.0)


def test_a_mean_that_was_divided_by_hand_is_told_so() -> None:
    weight, _, accumulator = one_weight()
    with (
        pytest.raises(CountError, match="the loss is a mean that was divided by 4"),
        accumulator.update() as update,
    ):
        update.backward((weight * ones(3)).mean() / 4)
