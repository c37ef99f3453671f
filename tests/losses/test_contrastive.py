"""The tiled losses against the plain formulas with the whole matrix, in float64."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gradgate.errors import GraphError, ShapeError

# private: the size of a tile, so that a small batch has many
from gradgate.losses import _tiles, clip_loss, info_nce, siglip_loss
from tests.messages import raises

TOLERANCE = {"rtol": 1e-12, "atol": 1e-13}  # float64; sums of some thousands of terms of order 1


@pytest.fixture(autouse=True, params=[64, 8 << 20], ids=["many tiles", "one tile"])
def tile_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tiles, "tile_bytes", lambda left, right: request.param)


def rows(count: int, size: int = 5, *, seed: int = 0) -> Tensor:
    made = torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.normalize(made, dim=1).requires_grad_()


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


def plain_info_nce(
    q: Tensor, k: Tensor, t: Any, positives: list[list[int]], negatives: Any = None, excluded: Any = None
) -> Tensor:
    """One loss per query, term by term; nan where a query has no positive key."""
    logits = q @ k.T / t
    if excluded is not None:
        logits = logits.masked_fill(F.one_hot(excluded, len(k)).bool(), -math.inf)
    own = (
        logits if negatives is None else torch.cat([logits, torch.einsum("qd,qnd->qn", q, negatives) / t], 1)
    )
    return torch.stack(
        [
            torch.stack([own[i].logsumexp(0) - logits[i, p] for p in row]).mean()
            for i, row in enumerate(positives)
        ]
    )


def plain_siglip(left: Tensor, right: Tensor, t: Any, b: Any, weights: Tensor) -> Tensor:
    signs = 2 * torch.eye(len(left), dtype=torch.float64) - 1
    each = -F.logsigmoid(signs * (left @ right.T / t + b)).sum(1)
    return (each * weights).sum() / weights.sum()


def assert_same(found: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(found, expected, **TOLERANCE)
    ours, theirs = (torch.autograd.grad(each, inputs, retain_graph=True) for each in (found, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE)


@pytest.mark.parametrize("count", [1, 2, 9, 23])
def test_info_nce_is_the_plain_formula_gradients_and_temperature_included(count: int) -> None:
    q, k, t = rows(count), rows(count + 3, seed=1), scalar(0.07)
    expected = plain_info_nce(q, k, t, [[i] for i in range(count)]).mean()
    assert_same(info_nce(q, k, temperature=t), expected, [q, k, t])


def test_several_positives_hard_negatives_and_weights() -> None:
    q, k, negatives = rows(6), rows(9, seed=1), rows(12, seed=2).detach().reshape(6, 2, 5).requires_grad_()
    t, weights = scalar(0.3), torch.arange(1.0, 7.0, dtype=torch.float64).requires_grad_()
    chosen = torch.tensor([[0, 3, 8], [1, -1, -1], [2, 4, -1], [3, -1, -1], [8, 7, 6], [0, -1, -1]])
    each = plain_info_nce(q, k, t, [[p for p in row if p >= 0] for row in chosen.tolist()], negatives)
    found = info_nce(q, k, temperature=t, positives=chosen, negatives=negatives, weights=weights)
    assert_same(found, (each * weights).sum() / weights.sum(), [q, k, negatives, t, weights])


def test_a_query_without_a_positive_key_takes_no_part() -> None:
    q, k = rows(3), rows(3, seed=1)
    found = info_nce(q, k, positives=torch.tensor([[0], [-1], [2]]))
    each = plain_info_nce(q, k, 0.07, [[0], [1], [2]])
    assert_same(found, (each[0] + each[2]) / 2, [q, k])


def test_the_indices_of_a_mask_of_positives_give_the_masked_loss() -> None:
    q, k, labels = rows(7), rows(7, seed=1), torch.tensor([0, 1, 0, 1, 2, 0, 3])
    mask = (labels[:, None] == labels) & ~torch.eye(7, dtype=torch.bool)
    logs = (q @ k.T / 0.3).log_softmax(1)
    shared = mask.any(1)
    expected = -((logs * mask).sum(1)[shared] / mask.sum(1)[shared]).mean()
    with raises(ShapeError, "positives given as a mask", [7, 7]):
        info_nce(q, k, temperature=0.3, positives=mask)
    found = torch.where(mask, torch.arange(7), -1).topk(2).values
    assert_same(info_nce(q, k, temperature=0.3, positives=found), expected, [q, k])
    assert_same(info_nce(q, k, temperature=0.3, positives=found.int()), expected, [q, k])


def test_a_row_among_its_own_keys_is_left_out_even_where_it_outweighs_all_others() -> None:
    """NT-Xent at a low temperature: exp(1 / 0.01) is larger than the others' sum by 40 digits."""
    views = rows(8)
    itself, other = torch.arange(8), torch.arange(8).roll(4)
    expected = plain_info_nce(views, views, 0.01, [[p] for p in other.tolist()], excluded=itself).mean()
    assert_same(info_nce(views, views, temperature=0.01, positives=other, excluded=itself), expected, [views])


def test_clip_loss_is_the_mean_of_both_directions() -> None:
    left, right, t = rows(11), rows(11, seed=1), scalar(0.07)
    own = [[i] for i in range(11)]
    each = (plain_info_nce(left, right, t, own) + plain_info_nce(right, left, t, own)) / 2
    assert_same(clip_loss(left, right, temperature=t), each.mean(), [left, right, t])
    assert_same(clip_loss(left, right, temperature=t, reduction="sum"), each.sum(), [left, right, t])
    torch.testing.assert_close(clip_loss(left, right, temperature=t, reduction="none"), each, **TOLERANCE)
    weights = torch.linspace(0, 2, 11, dtype=torch.float64)
    expected = (each * weights).sum() / weights.sum()
    assert_same(clip_loss(left, right, temperature=t, weights=weights), expected, [left, right, t])


def test_siglip_loss_with_learned_temperature_and_bias() -> None:
    left, right, t, b = rows(10), rows(10, seed=1), scalar(0.1), scalar(-2.0)
    weights = torch.linspace(0.5, 2, 10, dtype=torch.float64)
    ones = torch.ones_like(weights)
    assert_same(
        siglip_loss(left, right, temperature=t, bias=b),
        plain_siglip(left, right, t, b, ones),
        [left, right, t, b],
    )
    found = siglip_loss(left, right, temperature=t, bias=b, weights=weights)
    assert_same(found, plain_siglip(left, right, t, b, weights), [left, right, t, b])


def test_only_what_asks_for_a_gradient_gets_one() -> None:
    q, k = rows(4), rows(4, seed=1).detach()
    clip_loss(q, k).backward()
    assert q.grad is not None
    assert k.grad is None


def test_sixteen_bit_representations_give_a_float32_loss_and_gradients_of_their_own_type() -> None:
    q, k = (
        rows(40).detach().bfloat16().requires_grad_(),
        rows(40, seed=1).detach().bfloat16().requires_grad_(),
    )
    loss = clip_loss(q, k)
    assert loss.dtype == torch.float32
    loss.backward()
    assert q.grad is not None
    assert q.grad.dtype == torch.bfloat16
    expected = torch.autograd.grad(
        clip_loss(wide := q.detach().double().requires_grad_(), k.detach().double()), wide
    )[0]
    assert (q.grad.double() - expected).abs().max() < 0.02 * expected.abs().max()  # 8 bits


def test_a_second_derivative_is_refused_and_says_why() -> None:
    q = rows(4)
    (gradient,) = torch.autograd.grad(clip_loss(q, q.detach()), q, create_graph=True)
    with raises(GraphError, "a loss differentiated twice"):
        gradient.square().sum().backward()


@pytest.mark.parametrize("loss_fn", [info_nce, clip_loss])
def test_no_items_give_no_loss(loss_fn: Any) -> None:
    none = torch.zeros(0, 5, requires_grad=True)
    loss = loss_fn(none, none, reduction="sum")
    loss.backward()
    assert loss.item() == 0


def test_autocast_rounds_nothing() -> None:
    q, k = rows(9).detach().float(), rows(9, seed=1).detach().float()
    expected = clip_loss(q, k)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert clip_loss(q, right=k).equal(expected)
        assert clip_loss(left=q, right=k).equal(expected)
