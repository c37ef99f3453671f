"""Rows that are trained alone: all others stay as they are, to the bit, whatever the optimizer does."""

import copy
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
from gradgate.errors import OptionError, ShapeError
from gradgate.gates import train_rows
from gradgate.planning import peak_memory
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
@settings(max_examples=8)
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


def test_the_chosen_rows_move_as_a_parameter_of_their_own_would() -> None:
    model = Tied()
    optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    with train_rows(model.embedding, [2, 5]):
        train(model, optimizer, 4)
    # The slow way: the whole weight is put together from a constant and a small parameter.
    whole = Tied().embedding.weight.detach().clone()
    rows, words = nn.Parameter(whole[[2, 5]]), torch.arange(WORDS)
    reference = AdamW([rows], lr=0.1, weight_decay=0.1)
    for _ in range(4):
        reference.zero_grad()
        weight = whole.index_copy(0, torch.tensor([2, 5]), rows)
        F.cross_entropy(F.linear(F.embedding(words, weight).tanh(), weight), words.roll(1)).backward()
        reference.step()
    assert_same([model.embedding.weight.detach()[[2, 5]]], [rows.detach()], rtol=1e-12)


def test_the_state_is_as_small_as_the_rows_and_starts_from_scratch_afterwards() -> None:
    model = Tied()
    optimizer = Adam(model.parameters(), lr=0.1)
    handle = train_rows(model.embedding, [1, 4])
    train(model, optimizer, 2)
    assert optimizer.state[model.embedding.weight]["exp_avg"].shape == (2, WIDTH)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(model, optimizer, 1)
    assert optimizer.state[model.embedding.weight]["step"] == 3
    handle.remove()
    fresh = Tied()
    fresh.load_state_dict(model.state_dict())
    train(model, optimizer, 2)
    train(fresh, Adam(fresh.parameters(), lr=0.1), 2)
    assert torch.equal(model.embedding.weight, fresh.embedding.weight)
    handle.remove()  # again: nothing


def test_two_rows_of_a_large_table_take_the_memory_of_two_rows() -> None:
    embedding = nn.Embedding(32_000, 16)
    optimizer = AdamW(embedding.parameters(), lr=0.1)
    train_rows(embedding, [31_998, 31_999])
    embedding(torch.tensor([5, 31_999])).sum().backward()
    with peak_memory() as memory:
        optimizer.step()
    state = optimizer.state[embedding.weight]
    assert {value.shape for value in state.values() if isinstance(value, Tensor) and value.dim()} == {(2, 16)}
    assert memory.peak_bytes < 32_000 * 16


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


def test_an_optimizer_with_a_list_of_its_own_is_refused_before_it_moves_anything() -> None:
    model = Tied()
    optimizer = torch.optim.LBFGS(model.parameters())
    train_rows(model.embedding, [0])
    before = model.embedding.weight.detach().clone()
    with raises(OptionError, "rows under LBFGS"):
        optimizer.step(model.loss)  # type: ignore[arg-type]
    assert torch.equal(model.embedding.weight, before)


def test_other_hooks_on_the_step_see_what_was_stepped() -> None:
    model = Tied()
    optimizer = SGD(model.parameters(), lr=0.1)
    seen: list[Tensor] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(model.embedding.weight.detach().clone()))
    train_rows(model.embedding, [0])
    train(model, optimizer, 1)
    assert torch.equal(seen[0], model.embedding.weight)
    assert not torch.equal(seen[0], Tied().embedding.weight)


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


def test_an_optimizer_that_factors_its_state_trains_the_rows_as_a_matrix_of_their_own() -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(6, 3)
    before, rows = embedding.weight.detach().clone(), nn.Parameter(embedding.weight.detach()[[1, 2]])
    optimizer, alone = Adafactor(embedding.parameters(), lr=0.1), Adafactor([rows], lr=0.1)
    train_rows(embedding, [1, 2])
    for _ in range(3):
        for stepped, weight in ((optimizer, embedding.weight), (alone, rows)):
            stepped.zero_grad()
            weight.square().sum().backward()
            stepped.step()
    assert torch.equal(embedding.weight[[1, 2]], rows)
    assert torch.equal(embedding.weight[[0, 3, 4, 5]], before[[0, 3, 4, 5]])


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
    optimizer.state.clear()
    with train_rows(embedding, [1]):
        optimizer.step()
        saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    train_rows(embedding, [1, 2])
    with raises(OptionError, "rows with the state of others", "row_var", "[1, 1]", "2 of the 6 rows"):
        optimizer.step()


def test_a_state_of_other_rows_is_refused_in_words() -> None:
    embedding = nn.Embedding(6, 3)
    optimizer = Adam(embedding.parameters())
    with train_rows(embedding, [1, 2]):
        embedding(torch.arange(6)).sum().backward()
        optimizer.step()
        saved = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(saved)
    for others in ([1, 2, 3], [0, 1]):
        before = embedding.weight.detach().clone()
        with (
            train_rows(embedding, others),
            raises(OptionError, "rows with the state of others", "[2, 3]", f"{len(others)} of the 6 rows"),
        ):
            optimizer.step()
        assert torch.equal(embedding.weight, before)
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_an_accumulator_steps_the_rows_alone(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    embedding = nn.Embedding(WORDS, WIDTH, dtype=dtype)
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


def test_a_frozen_parameter_may_be_restricted_and_unfrozen_later() -> None:
    model = Tied()
    model.embedding.weight.requires_grad_(False)
    train_rows(model.embedding, [1])
    assert not model.embedding.weight.requires_grad
    model.embedding.weight.requires_grad_(True)
    before = model.embedding.weight.detach().clone()
    train(model, AdamW(model.parameters()), 1)
    assert (model.embedding.weight != before).any(1).nonzero()[:, 0].tolist() == [1]


def renormalising() -> nn.Embedding:
    return nn.Embedding(WORDS, WIDTH, max_norm=1.0)


@pytest.mark.parametrize(
    ("call", "kind", "cause"),
    [
        (
            lambda e: train_rows(e, [7, 8, 9, 10]),
            OptionError,
            ("rows out of range", "rows 7, 8, 9 and 1 more", "0 to 6"),
        ),
        (lambda e: train_rows(e, [-1]), OptionError, ("rows out of range", "row -1 is")),
        (lambda e: train_rows(e, [2, 2]), OptionError, ("rows given twice", "row 2")),
        (lambda e: train_rows(e, []), OptionError, ("no rows",)),
        (
            lambda e: train_rows(e, torch.ones(7, dtype=torch.bool)),
            OptionError,
            ("rows that are fractions", "torch.bool", "[7]"),
        ),
        (lambda e: train_rows(e, [0.5]), OptionError, ("rows that are fractions", "torch.float32")),
        (lambda e: train_rows(e, 1), OptionError, ("rows that are fractions", "torch.int64", "[]")),
        (lambda e: train_rows(nn.ReLU(), [0]), OptionError, ("rows of a module without a weight", "ReLU")),
        (lambda e: train_rows(e.weight * 2, [0]), OptionError, ("rows of a computed tensor",)),
        (lambda e: train_rows(renormalising(), [0]), OptionError, ("rows of an embedding with max_norm",)),
        (lambda e: train_rows(torch.ones(()), [0]), ShapeError, ("rows of a number",)),
        (
            lambda e: train_rows(torch.ones(2, dtype=torch.int), [0]),
            OptionError,
            ("rows of integers", "torch.int32"),
        ),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    call: Callable[..., Any], kind: type[Exception], cause: tuple[str, ...]
) -> None:
    embedding = nn.Embedding(WORDS, WIDTH)
    with raises(kind, *cause):
        call(embedding)
    train_rows(embedding, [0]).remove()  # nothing is left of it


def test_what_is_chosen_already_is_refused() -> None:
    model = Tied()
    with (
        train_rows(model.embedding, [0]),
        raises(OptionError, "rows chosen twice"),
    ):
        train_rows(model.output, [1])
    train_rows(model.output, [1]).remove()
