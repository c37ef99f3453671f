"""Rows that are trained alone: all others stay as they are, to the bit, whatever the optimizer does."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adafactor, Adam, AdamW, Optimizer

import gradgate as gg
from gradgate.errors import OptionError
from gradgate.gates import train_rows
from tests.laws.optimizers import OPTIMIZERS
from tests.messages import raises
from tests.reference import assert_same

WORDS, WIDTH = 7, 3


class Tied(nn.Module):
    """A language model of one layer, whose output weights are those of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.output = nn.Linear(WIDTH, WORDS, bias=False)
        self.output.weight = self.embedding.weight
        self.double()

    def loss(self) -> Tensor:
        words = torch.arange(WORDS)
        return F.cross_entropy(self.output(self.embedding(words).tanh()), words.roll(1))


def train(model: Tied, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()


def only_the_gradient(parameter: Tensor, chosen: Tensor) -> Any:
    """Known to be wrong: momentum and decay move the others all the same."""
    return parameter.register_hook(lambda gradient: gradient * chosen)


def by_rows(parameter: Tensor, chosen: Tensor) -> Any:
    return train_rows(parameter, chosen[:, 0].nonzero()[:, 0])


def moved(
    restrict: Callable[[Tensor, Tensor], Any], make: Callable[..., Optimizer], chosen: Tensor
) -> Tensor:
    """Train, restrict with momentum standing, train on: return which entries changed in the second part."""
    model = Tied()
    optimizer = make(model.parameters())
    train(model, optimizer, 2)
    before = model.embedding.weight.detach().clone()
    restrict(model.embedding.weight, chosen)
    train(model, optimizer, 3)
    return model.embedding.weight.detach() != before


@pytest.mark.parametrize("name", OPTIMIZERS)
@settings(max_examples=4)
@given(rows=st.sets(st.integers(0, WORDS - 1), min_size=1))
def test_only_the_chosen_rows_ever_change(name: str, rows: set[int]) -> None:
    chosen = torch.zeros(WORDS, WIDTH, dtype=torch.bool)
    chosen[list(rows)] = True
    assert torch.equal(moved(by_rows, OPTIMIZERS[name], chosen), chosen)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: SGD(p, lr=0.1, momentum=0.9),
        lambda p: Adam(p, lr=0.1),
        lambda p: AdamW(p, lr=0.1, weight_decay=0.1),
        lambda p: SGD(p, lr=0.1, weight_decay=0.1),
    ],
)
def test_the_law_rejects_a_masked_gradient_alone(make: Callable[..., Optimizer]) -> None:
    chosen = torch.zeros(WORDS, WIDTH, dtype=torch.bool)
    chosen[1] = True
    assert moved(only_the_gradient, make, chosen).any(1).all()


@pytest.mark.parametrize("kind", [AdamW, Adafactor])  # which factors its state
def test_the_chosen_rows_move_as_a_parameter_of_their_own_would(kind: Callable[..., Optimizer]) -> None:
    model = Tied()
    optimizer = kind(model.parameters(), lr=0.1, weight_decay=0.1)
    with train_rows(model.embedding, [2, 5]):
        train(model, optimizer, 4)
    # The slow way: the whole weight is put together from a constant and a small parameter.
    whole = Tied().embedding.weight.detach().clone()
    rows, words = nn.Parameter(whole[[2, 5]]), torch.arange(WORDS)
    reference = kind([rows], lr=0.1, weight_decay=0.1)
    for _ in range(4):
        reference.zero_grad()
        weight = whole.index_copy(0, torch.tensor([2, 5]), rows)
        F.cross_entropy(F.linear(F.embedding(words, weight).tanh(), weight), words.roll(1)).backward()
        reference.step()
    assert_same([model.embedding.weight.detach()[[2, 5]]], [rows.detach()], rtol=1e-12)


def test_the_rows_of_two_optimizers_and_of_a_group_that_is_added_later_are_stepped_alone() -> None:
    model = Tied()
    other = nn.Embedding(WORDS, WIDTH, dtype=torch.float64)
    before = [each.detach().clone() for each in (model.embedding.weight, other.weight)]
    train_rows(model.embedding, [1])
    train_rows(other, [2])
    first = AdamW([nn.Parameter(torch.zeros(1))], lr=0.1)
    first.add_param_group({"params": model.embedding.parameters(), "weight_decay": 1.0})
    second = SGD([*model.embedding.parameters(), *other.parameters()], lr=0.1, momentum=0.9, weight_decay=0.1)
    for _ in range(3):
        (model.loss() + other.weight.square().sum()).backward()
        first.step()
        second.step()
    for weight, start, row in zip((model.embedding.weight, other.weight), before, (1, 2), strict=True):
        assert (weight != start).any(1).nonzero().tolist() == [[row]]


def test_the_gradient_elsewhere_is_zero_so_that_a_clip_counts_what_is_trained() -> None:
    model = Tied()
    model.loss().backward()
    train_rows(model.embedding, [1, 4])
    assert not model.embedding.weight.grad[[0, 2, 3, 5, 6]].any()  # also of what stood already
    model.embedding.weight.grad = None
    model.loss().backward()
    assert not model.embedding.weight.grad[[0, 2, 3, 5, 6]].any()
    assert model.embedding.weight.grad[[1, 4]].all()


def test_a_step_that_raises_changes_nothing_of_it_and_the_next_one_is_right() -> None:
    class Failing(Adam):
        fails = True

        def step(self, closure: Any = None) -> Any:
            super().step.__wrapped__(self, closure)  # type: ignore[attr-defined]
            if self.fails:
                raise ZeroDivisionError

    model = Tied()
    optimizer = Failing(model.parameters(), lr=0.1)
    train_rows(model.embedding, [3])
    before, groups = model.embedding.weight.detach().clone(), optimizer.param_groups[0]["params"]
    with pytest.raises(ZeroDivisionError):
        train(model, optimizer, 1)
    assert torch.equal(model.embedding.weight, before)
    assert optimizer.param_groups[0]["params"] is groups
    assert optimizer.state_dict()["state"] == {}
    optimizer.fails = False
    train(model, optimizer, 1)
    assert (model.embedding.weight != before).any(1).nonzero().tolist() == [[3]]


class Twice(SGD):
    """Evaluates its closure twice within a step."""

    def step(self, closure: Any = None) -> Any:
        for _ in range(2):
            loss = super().step.__wrapped__(self, closure)  # type: ignore[attr-defined]
        return loss


def test_a_closure_sees_the_rows_that_the_step_has_moved() -> None:
    model, other = Tied(), Tied()
    losses: list[float] = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model.loss()
        loss.backward()
        losses.append(loss.item())
        return loss

    train_rows(model.embedding, [0, 6])
    optimizer: Optimizer = Twice(model.parameters(), lr=0.5)
    optimizer.step(closure)
    optimizer.step(closure=closure)
    train_rows(other.embedding, [0, 6])
    train(other, SGD(other.parameters(), lr=0.5), 4)
    assert_same([model.embedding.weight.detach()], [other.embedding.weight.detach()])
    assert losses == sorted(losses, reverse=True)


def test_other_hooks_before_the_step_act_on_the_gradient_and_the_rate() -> None:
    weight = nn.Parameter(torch.zeros(3, 2))
    optimizer = SGD([weight], lr=1.0)

    def clip_and_slow_down(stepped: Optimizer, *_: Any) -> None:
        nn.utils.clip_grad_value_([weight], 0.01)
        stepped.param_groups[0]["lr"] = 0.5

    train_rows(weight, [0])
    for _ in range(2):  # also a hook that comes after the first step
        weight.grad = torch.ones(3, 2)
        optimizer.step()
        optimizer.register_step_pre_hook(clip_and_slow_down)
    assert weight.tolist() == [[pytest.approx(-1.005)] * 2, [0.0] * 2, [0.0] * 2]
    assert optimizer.param_groups[0]["lr"] == 0.5


class HandingOn(Optimizer):
    """An optimizer around another one, as SAM and Lookahead are."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.inner, self.param_groups = inner, inner.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_around_another_lets_that_one_step_the_rows() -> None:
    weight = nn.Parameter(torch.ones(3, 2))
    optimizer = HandingOn(SGD([weight], lr=0.1, weight_decay=1.0))
    train_rows(weight, [0])
    weight.grad = torch.ones(3, 2)
    optimizer.step()
    assert weight.tolist() == [[pytest.approx(0.8)] * 2, [1.0] * 2, [1.0] * 2]


@pytest.mark.parametrize("make", [torch.optim.Adafactor, torch.optim.Rprop, torch.optim.Adagrad])
def test_all_rows_move_again_after_it_is_removed_whatever_the_state_is_made_of(make: Any) -> None:
    embedding = nn.Embedding(6, 3)
    optimizer = make(embedding.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        embedding(torch.arange(6)).square().sum().backward()
        optimizer.step()

    with train_rows(embedding, [1, 2]):
        step()
    before = embedding.weight.detach().clone()
    for _ in range(2):
        step()
    assert ((embedding.weight - before).abs().amax(1) > 1e-3).all()


def test_a_factored_state_of_all_rows_or_of_others_is_refused_in_words() -> None:
    embedding = nn.Embedding(6, 3)
    optimizer = Adafactor(embedding.parameters())
    embedding(torch.arange(6)).sum().backward()
    optimizer.step()
    with (
        train_rows(embedding, [1, 2]),
        raises(OptionError, "rows with the state of others", "row_var", "[6, 1]", "2 of the 6 rows"),
    ):
        optimizer.step()


def test_an_accumulator_steps_the_rows_alone() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(WORDS, WIDTH, dtype=torch.bfloat16)
    before = embedding.weight.detach().clone()
    train_rows(embedding, [1, 2])
    optimizer = AdamW(embedding.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, clip_norm=1.0)
    for _ in range(2):
        accumulator.step_window(
            lambda x: embedding(x).float().square().mean(), [torch.arange(7), torch.arange(2)]
        )
    assert (embedding.weight != before).any(1).nonzero()[:, 0].tolist() == [1, 2]
    assert optimizer.state[embedding.weight]["exp_avg"].dtype == torch.float32


def test_sparse_gradients_keep_the_chosen_rows() -> None:
    embedding = nn.Embedding(WORDS, WIDTH, sparse=True)
    before = embedding.weight.detach().clone()
    train_rows(embedding, [1, 2])
    optimizer = torch.optim.SparseAdam(embedding.parameters(), lr=0.1)
    embedding(torch.tensor([0, 1, 1, 6])).sum().backward()
    assert embedding.weight.grad.coalesce().indices().tolist() == [[1]]
    optimizer.step()
    assert (embedding.weight != before).any(1).nonzero()[:, 0].tolist() == [1]
