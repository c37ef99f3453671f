"""A loss over pairs of a micro-batch is warned of once; a loss that takes items one by one is not."""

import linecache
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import CoupledLossWarning
from tests.messages import warns
from tests.silence import no_warning

Loss = Callable[[Tensor, Tensor], Tensor]


def labels(codes: Tensor) -> Tensor:
    return torch.arange(len(codes))


def two_directions(a: Tensor, b: Tensor) -> Tensor:
    scores = F.normalize(a, dim=1) @ F.normalize(b, dim=1).T / 0.1
    return (F.cross_entropy(scores, labels(a)) + F.cross_entropy(scores.T, labels(a))) / 2


COUPLED: dict[str, Loss] = {
    "info_nce": lambda a, b: F.cross_entropy(a @ b.T / 0.07, labels(a)),
    "clip": two_directions,
    "einsum": lambda a, b: F.cross_entropy(torch.einsum("id,jd->ij", a, b), labels(a)),
    "siglip": lambda a, b: -F.logsigmoid((a @ b.T) * (2 * torch.eye(len(a)) - 1)).sum(1).mean(),
    "distances": lambda a, b: F.cross_entropy(-torch.cdist(a, b), labels(a)),
    "uniformity": lambda a, b: torch.exp(-2 * torch.cdist(a, a)).mean().log(),
}
APART: dict[str, Loss] = {
    "cross_entropy": lambda a, b: F.cross_entropy(a, labels(a) % 4),
    "cosine": lambda a, b: (1 - F.cosine_similarity(a, b)).mean(),
    "scores": lambda a, b: F.binary_cross_entropy_with_logits((a * b).sum(1), torch.ones(len(a))),
    "triplet": lambda a, b: F.triplet_margin_loss(a, b, a.detach() * 0),
    "prototypes": lambda a, b: F.cross_entropy(a @ torch.ones(4, 4), labels(a) % 4),
}


def train(loss_fn: Loss, sizes: tuple[int, ...] = (4, 4)) -> None:
    left, right = nn.Linear(3, 4), nn.Linear(3, 4)
    accumulator = gg.Accumulator(torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1))
    for _ in range(2):
        with accumulator.update() as update:
            for x in update.micro_batches(torch.randn(sum(sizes), 3).split(sizes)):
                update.backward(loss_fn(left(x), right(x)), count=len(x))


@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_over_pairs_is_warned_of_once(name: str) -> None:
    with warns(CoupledLossWarning, "a loss that compares its items") as said:
        train(COUPLED[name])
    assert len(said) == 1
    assert said[0].filename == __file__


def test_a_single_sample_shows_no_pairs_so_a_later_micro_batch_does() -> None:
    with warns(CoupledLossWarning, "a loss that compares its items") as said:
        train(COUPLED["info_nce"], (4, 1, 4, 4))
    assert len(said) == 1
    with no_warning():
        train(COUPLED["info_nce"], (1, 1))


def test_the_warning_names_the_users_line_however_deep_gradgate_calls_the_loss() -> None:
    model = nn.Linear(3, 4)
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model)

    def loss_fn(x: Tensor) -> tuple[Tensor, int]:
        return COUPLED["info_nce"](model(x), model(x)), len(x)

    with warns(CoupledLossWarning, "a loss that compares its items") as said:
        accumulator.step_window(loss_fn, torch.randn(8, 3).split(4))  # here
    assert said[0].filename == __file__
    assert linecache.getline(__file__, said[0].lineno).endswith("# here\n")


@pytest.mark.parametrize("name", APART)
def test_a_loss_that_takes_items_one_by_one_is_not(name: str) -> None:
    with no_warning():
        train(APART[name])
