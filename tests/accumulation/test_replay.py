"""Out of memory: roll back, cut finer, replay; the update is the one that the finer cut makes."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest import TestCase

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

import gradgate as gg
from gradgate.errors import BatchNormWarning, BudgetError, CountWarning, OptionError
from tests.accumulation.one_weight import StopError, one_weight, stopped_by
from tests.laws.standing import differences, standing
from tests.messages import raises, warns
from tests.tensors import RTOL, arange, labels, on_device, ones, rand, tensor

IGNORE_BATCH_NORM = pytest.mark.filterwarnings("ignore::gradgate.errors.BatchNormWarning")
OUT_OF_MEMORY = "CUDA out of memory. Tried to allocate 20.00 MiB.\nSee documentation."


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("gradgate")
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(logging.NOTSET)


class Room(torch.autograd.Function):
    """The identity, for which memory runs out in forward or backward beyond a number of samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, most: int, where: str) -> Tensor:
        ctx.most, ctx.where = most, where
        if where == "forward" and len(x) > most:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        if ctx.where == "backward" and len(gradient) > ctx.most:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return gradient, None, None


class Model(nn.Module):
    """Batch norm and dropout on either side of the place where memory runs out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = (nn.Linear(3, 3) for _ in range(2))
        self.norm, self.dropout = nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.register_buffer("seen", torch.zeros(()))
        self.room: tuple[int, str] = (1000, "nowhere")

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.seen + len(x)  # a buffer that is put in the old one's place
        x = self.dropout(self.norm(self.first(x)))
        return self.last(Room.apply(x, *self.room))

    def loss(self, x: Tensor) -> Tensor:
        return self(x).pow(2).mean()


def training(**options: Any) -> tuple[Model, torch.optim.Optimizer, gg.Accumulator]:
    model = Model()
    optimizer = Adam(model.parameters(), lr=0.1)
    return model, optimizer, gg.Accumulator(optimizer, model=model, **options)


@IGNORE_BATCH_NORM
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("options", [{}, {"clear": "zero"}, {"clear": gg.decay(0.5)}], ids=str)
def test_a_retried_window_is_bit_identical_to_one_begun_with_the_finer_cut(where: str, options: dict) -> None:
    batch = torch.randn(12, 3)
    finished = []
    for retried in (True, False):
        model, optimizer, accumulator = training(**options)
        torch.manual_seed(7)
        for number in range(3):
            if retried:
                model.room = (3, where) if number == 1 else (1000, "nowhere")
                cut = [12] if number != 2 else [6, 6]  # the third window is cut as the second one had to be
            else:
                cut = [12] if number == 0 else [3] * 4
            update = accumulator.step_window(model.loss, batch.split(cut))
            assert update.micro_batch_count == (1 if number == 0 else 4)
        finished.append((standing(optimizer), dict(model.named_buffers()), torch.rand(1)))
    assert differences(*(one[0] for one in finished), identities=False) == []
    for name, buffer in finished[0][1].items():
        assert torch.equal(buffer, finished[1][1][name]), name
    assert torch.equal(finished[0][2], finished[1][2])  # the random state


@IGNORE_BATCH_NORM
def test_running_out_late_in_the_window_rolls_back_all_of_it() -> None:
    model, _, accumulator = training()
    batches = [torch.randn(size, 3) for size in (2, 2, 8)]
    model.room = (4, "backward")
    update = accumulator.step_window(model.loss, batches)
    assert (update.count, update.micro_batch_count) == (36, 4)
    assert model.seen == 12
    assert model.norm.num_batches_tracked == 4


@IGNORE_BATCH_NORM
def test_modules_that_nobody_owns_are_rolled_back_too() -> None:
    """A generator in training mode, in the discriminator's window."""
    generator, discriminator = Model(), nn.Linear(3, 1)
    accumulator = gg.Accumulator(SGD(discriminator.parameters(), lr=0.1), model=[discriminator, generator])
    generator.room = (2, "forward")
    accumulator.step_window(lambda x: discriminator(generator(x)).mean(), [torch.randn(4, 3)])
    assert (generator.seen, generator.norm.num_batches_tracked) == (4, 2)


@IGNORE_BATCH_NORM
def test_a_module_that_came_later_is_rolled_back_too() -> None:
    body = nn.Linear(3, 3)
    optimizer = SGD(body.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=body)
    accumulator.step_window(lambda x: body(x).mean(), [torch.randn(4, 3)])
    head = Model()
    optimizer.add_param_group({"params": list(head.parameters())})
    accumulator.model = [body, head]
    head.room = (2, "forward")
    accumulator.step_window(lambda x: head(body(x)).mean(), [torch.randn(4, 3)])
    assert (head.seen, head.norm.num_batches_tracked) == (4, 2)


def test_a_lazy_module_that_was_never_run_is_no_trouble() -> None:
    lazy = nn.LazyBatchNorm1d()
    weight, optimizer, accumulator = one_weight()
    accumulator = gg.Accumulator(optimizer, model=[accumulator.model, lazy])
    accumulator.step_window(lambda gradient: (weight * gradient, 1), [1.0, 3.0])
    assert weight.item() == -2.0
    assert lazy.num_features == 0


# -- how it is cut ----------------------------------------------------------------------------------


def fitting(most: int, seen: list[int], weight: Tensor) -> Callable[[Tensor], Tensor]:
    def loss_fn(x: Tensor) -> Tensor:
        seen.append(len(x))
        if len(x) > most:
            raise torch.OutOfMemoryError(OUT_OF_MEMORY)
        return (weight * x).mean()

    return loss_fn


def test_the_size_is_halved_until_it_fits_and_is_remembered() -> None:
    weight, _, accumulator = one_weight()
    seen: list[int] = []
    loss_fn = fitting(3, seen, weight)
    assert accumulator.samples_that_fit is None
    update = accumulator.step_window(loss_fn, [arange(10), arange(2)])
    assert seen == [10, 5, 3, 2, 3, 2, 2]
    assert (update.count, update.micro_batch_count) == (12, 5)
    assert weight.item() == pytest.approx(-46 / 12, rel=RTOL)
    assert accumulator.samples_that_fit == 3
    seen.clear()
    accumulator.step_window(loss_fn, [arange(9)])
    assert seen == [3, 3, 3]


def test_pieces_are_of_nearly_equal_size() -> None:
    weight, _, accumulator = one_weight()
    seen: list[int] = []
    accumulator.step_window(fitting(5, seen, weight), [arange(9)])
    assert seen == [9, 5, 4]


def test_it_is_said_what_was_done() -> None:
    weight, _, accumulator = one_weight()
    with TestCase().assertLogs("gradgate", logging.WARNING) as said:
        accumulator.step_window(fitting(2, [], weight), [arange(4)])
    assert [record.getMessage() for record in said.records] == [
        "step: out of memory with 4 samples; replaying the window with 2"
    ]


def test_the_size_that_fits_is_saved_and_loaded() -> None:
    weight, optimizer, accumulator = one_weight()
    accumulator.step_window(fitting(2, [], weight), [arange(4)])
    again = gg.Accumulator(optimizer, model=accumulator.model)
    again.load_state_dict(accumulator.state_dict())
    seen: list[int] = []
    again.step_window(fitting(2, seen, weight), [arange(4)])
    assert seen == [2, 2]


class Pair(NamedTuple):
    x: Tensor
    names: list[str]


@dataclass
class Batch:
    x: Tensor
    scale: float = 2.0


@pytest.mark.parametrize(
    ("batch", "take"),
    [
        ({"x": arange(4), "y": arange(4)}, lambda b: b["x"] + b["y"] - b["y"]),
        ((arange(4), ({"y": arange(4)}, None)), lambda b: b[0]),
        (Pair(arange(4), list("abcd")), lambda b: b.x if len(b.names) == len(b.x) else None),
        (Batch(arange(4)), lambda b: b.x * b.scale / 2),
        (["0", "1", "2", "3"], lambda b: tensor([float(text) for text in b])),
    ],
    ids=["dict", "tuple", "namedtuple", "dataclass", "texts"],
)
def test_batches_of_many_kinds_are_cut(batch: Any, take: Callable[[Any], Tensor]) -> None:
    weight, _, accumulator = one_weight()
    loss_fn = fitting(1, [], weight)
    update = accumulator.step_window(lambda piece: loss_fn(take(piece)), [batch])
    assert (weight.item(), update.micro_batch_count) == (-1.5, 4)


def test_a_loss_function_may_return_its_count() -> None:
    weight, _, accumulator = one_weight()

    def loss_fn(x: Tensor) -> tuple[Tensor, int]:
        fitting(2, [], weight)(x)
        return weight * x.mean(), len(x)

    accumulator.step_window(loss_fn, [arange(4), tensor([9.0])])
    assert weight.item() == -15 / 5


def test_a_sum_says_so() -> None:
    weight, _, accumulator = one_weight()
    accumulator.step_window(
        lambda x: ((weight * x).sum(), len(x)), [arange(4), tensor([9.0])], reduction="sum"
    )
    assert weight.item() == -15 / 5


def test_any_iterable_is_a_window() -> None:
    weight, _, accumulator = one_weight()

    def window() -> Iterator[Tensor]:
        yield arange(4)
        yield tensor([9.0])

    accumulator.step_window(fitting(2, [], weight), window())
    assert weight.item() == -3.0


# -- what cannot be cut, and what is not about memory -------------------------------------------


def test_one_sample_that_does_not_fit_is_an_error_and_nothing_is_changed() -> None:
    weight, optimizer, accumulator = one_weight(clear="zero")
    accumulator.step_window(fitting(9, [], weight), [arange(2)])
    before = standing(optimizer)
    with raises(BudgetError, "does not fit") as caught:
        accumulator.step_window(fitting(0, [], weight), [arange(4)])
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
    assert differences(standing(optimizer), before) == []
    accumulator.step_window(fitting(9, [], weight), [arange(2)])
    assert weight.item() == -1.0


@pytest.mark.parametrize(
    "batch", [3.0, (arange(4), arange(3)), object()], ids=["a number", "uneven", "an object"]
)
def test_a_batch_that_cannot_be_cut_is_an_error(batch: Any) -> None:
    weight, _, accumulator = one_weight()
    loss_fn = fitting(0, [], weight)
    with pytest.raises(BudgetError, match="this micro-batch cannot be split"):
        accumulator.step_window(lambda _: loss_fn(arange(4)), [batch])
    assert weight.grad is None


def test_the_cpu_allocators_error_counts_as_out_of_memory() -> None:
    weight, _, accumulator = one_weight()

    def loss_fn(x: Tensor) -> Tensor:
        if len(x) > 2:
            torch.empty(2**62, dtype=torch.uint8)  # the real one
        return (weight * x).mean()

    accumulator.step_window(loss_fn, [arange(4)])
    assert (weight.item(), accumulator.samples_that_fit) == (-1.5, 2)


@pytest.mark.parametrize("error", [StopError, RuntimeError, MemoryError, KeyboardInterrupt])
def test_other_errors_are_not_retried(error: type[BaseException]) -> None:
    weight, _, accumulator = one_weight()
    calls = []

    def loss_fn(x: Tensor) -> Tensor:
        calls.append(len(x))
        raise error("no matter of memory")

    with stopped_by(error):
        accumulator.step_window(loss_fn, [arange(4)])
    assert (calls, weight.grad, accumulator.samples_that_fit) == ([4], None, None)


def test_memory_that_runs_out_in_the_step_is_not_retried() -> None:
    """A finer cut would not help there."""
    weight, optimizer, accumulator = one_weight(undo_step=True)

    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError(OUT_OF_MEMORY)

    optimizer.register_step_post_hook(fail)
    calls: list[int] = []
    with pytest.raises(torch.OutOfMemoryError):
        accumulator.step_window(fitting(9, calls, weight), [arange(4)])
    assert (calls, weight.item(), weight.grad) == ([4], 0.0, None)


def test_a_resumed_window_that_runs_out_goes_on_where_it_was() -> None:
    weight, optimizer, accumulator = one_weight()
    window = [arange(4), arange(4) * 10, ones(3)]
    with stopped_by(StopError), accumulator.update() as update:
        for x in update.micro_batches(window):
            update.backward((weight * x).mean())
            saved = accumulator.state_dict()
            raise StopError
    resumed = gg.Accumulator(optimizer, model=accumulator.model)
    resumed.load_state_dict(saved)
    update = resumed.step_window(fitting(2, [], weight), window)
    assert update.count == 11
    assert weight.item() == pytest.approx(-69 / 11, rel=RTOL)


def test_the_warning_of_a_batch_norm_is_said_once_over_replays() -> None:
    model, _, accumulator = training()
    model.room = (3, "backward")
    with pytest.warns(BatchNormWarning) as said:
        accumulator.step_window(model.loss, [torch.randn(12, 3)])
    assert len(said) == 1


@pytest.mark.parametrize(
    "text",
    [
        "MPS backend out of memory (MPS allocated: 1 GB)",
        "CUDA error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
    ],
)
def test_other_words_for_it_count_too(text: str) -> None:
    weight, _, accumulator = one_weight()

    def loss_fn(x: Tensor) -> Tensor:
        if len(x) > 2:
            raise RuntimeError(text)
        return (weight * x).mean()

    accumulator.step_window(loss_fn, [arange(4)])
    assert accumulator.samples_that_fit == 2


@pytest.mark.parametrize("outcome", [None, 3.0, (1, 2), (tensor(1.0), 1, 2)], ids=repr)
def test_a_loss_function_that_returns_something_else_is_told(outcome: Any) -> None:
    with raises(OptionError, "a step that returns a number"):
        one_weight()[2].step_window(lambda _: outcome, [arange(4)])


# -- one batch, or a window -----------------------------------------------------------------------


def test_a_tuple_of_inputs_and_targets_is_one_batch() -> None:
    """Not two micro-batches, one of inputs and one of targets."""
    weight, _, accumulator = one_weight()
    x, y = arange(4), arange(4) * 3
    update = accumulator.step(lambda batch: ((weight * batch[0] * batch[1]).mean(), len(batch[0])), (x, y))
    assert (update.micro_batch_count, update.count) == (1, 4)
    assert weight.item() == pytest.approx(-float((x * y).mean()), rel=RTOL)


@pytest.mark.parametrize(
    "batch",
    [
        {"x": arange(5), "lengths": [3, 1, 4, 1, 5]},
        (arange(5), [3, 1, 4, 1, 5]),
        [arange(5), (3, 1, 4, 1, 5)],
        {"x": arange(5), "lengths": [torch.ones(n) for n in (3, 1, 4, 1, 5)]},
    ],
    ids=["dict", "tuple", "list", "ragged tensors"],
)
def test_lists_beside_tensors_are_split_with_them(batch: Any) -> None:
    weight, _, accumulator = one_weight()

    def loss_fn(batch: Any) -> tuple[Tensor, int]:
        x, lengths = batch.values() if isinstance(batch, dict) else batch
        fitting(2, [], weight)(x)
        sizes = [len(each) if isinstance(each, Tensor) else each for each in lengths]
        pairs = list(zip(x.tolist(), sizes, strict=False))  # what is too long is read from its beginning
        return weight * sum(value * size for value, size in pairs) / len(pairs), len(pairs)

    assert accumulator.step(loss_fn, batch).micro_batch_count == 3
    assert weight.item() == pytest.approx(-(0 * 3 + 1 * 1 + 2 * 4 + 3 * 1 + 4 * 5) / 5, rel=RTOL)


def test_a_batch_of_time_first_sequences_is_split_where_it_is_said_to_hold_its_samples() -> None:
    weight, _, accumulator = one_weight()

    def loss_fn(x: Tensor) -> tuple[Tensor, int]:
        fitting(2, [], weight)(x.T)
        return (weight * x.sum(0)).mean(), x.shape[1]

    update = accumulator.step(loss_fn, arange(12).view(3, 4), batch_dim=1)
    assert (update.count, update.micro_batch_count) == (4, 2)
    assert weight.item() == pytest.approx(-66 / 4, rel=RTOL)


@pytest.mark.parametrize("window", [False, True])
def test_raw_samples_are_collated_after_they_were_split(window: bool) -> None:
    weight, _, accumulator = one_weight()
    samples = [{"value": float(value)} for value in range(5)]

    def collate(some: list[dict[str, float]]) -> Tensor:
        return tensor([each["value"] for each in some])

    if window:
        accumulator.step_window(fitting(2, [], weight), [samples[:4], samples[4:]], collate=collate)
    else:
        accumulator.step(fitting(2, [], weight), samples, collate=collate)
    assert weight.item() == pytest.approx(-2.0, rel=RTOL)


def test_a_batch_is_read_once_however_often_it_is_split() -> None:
    """Two samples beside a tuple of two fields could be read in two ways; four could not."""
    weight, _, accumulator = one_weight()
    batch = (arange(4), (arange(4), arange(4)))
    accumulator.step(lambda piece: fitting(1, [], weight)(piece[0]), batch)
    assert (weight.item(), accumulator.samples_that_fit) == (-1.5, 1)


@pytest.mark.parametrize(
    ("call", "cause"),
    [
        (
            lambda a, f: a.step(f, [arange(4)], plan=object(), batch_dim=0),
            "a dimension beside a plan",
        ),
        (
            lambda a, f: a.step(f, arange(4), plan=object(), collate=list),
            "a dimension beside a plan",
        ),
        (lambda a, f: a.step(f, arange(4), deal="whole"), "a deal without a plan"),
        (lambda a, f: a.step(f, gg.windows([arange(4)], size=1)), "an iterator as a batch"),
        (
            lambda a, f: a.step(f, next(iter(gg.windows([arange(4)], size=1)))),
            "an iterator as a batch",
        ),
        (lambda a, f: a.step(f, iter([arange(4)])), "an iterator as a batch"),
        (lambda a, f: a.step(f, [(arange(4), arange(4))]), "a window as a batch"),
        (lambda a, f: a.step_window(f, arange(4)), "a tensor as a window"),
        (lambda a, f: a.step_window(f, (ones(4, 2), arange(4))), "a batch as a window"),
    ],
)
def test_what_is_no_batch_or_no_window_is_refused(call: Any, cause: str) -> None:
    weight, _, accumulator = one_weight()
    with raises(OptionError, cause):
        call(accumulator, lambda x: (weight * x).mean())
    assert weight.item() == 0.0


@pytest.mark.parametrize("as_tensor", [False, True])
def test_an_accuracy_that_is_returned_as_the_count_is_warned_of(as_tensor: bool) -> None:
    weight, batches = nn.Parameter(ones(1)), [ones(4)]
    accumulator = gg.Accumulator(SGD([weight], lr=1.0))

    def counted(count: float) -> Callable[[Tensor], tuple[Tensor, Any]]:
        return lambda batch: ((batch * weight).exp().mean(), tensor(count) if as_tensor else count)

    with warns(CountWarning, "an accuracy as the count") as said:
        accumulator.step_window(counted(0.75), batches)
    assert {each.filename for each in said} == {__file__}
    for count in (1.0, 1.5, 4.0):  # a warning would be an error
        accumulator.step_window(counted(count), batches)


def test_an_accuracy_beside_a_loss_of_two_terms_is_warned_of() -> None:
    model = on_device(nn.Linear(2, 3))

    def loss_fn(x: Tensor) -> tuple[Tensor, float]:
        scores = model(x)
        return F.cross_entropy(scores, labels([0, 1, 2, 0])) + 0.1 * scores.square().mean(), 0.25

    with warns(CountWarning, "an accuracy as the count"):
        gg.Accumulator(SGD(model.parameters(), lr=1.0)).step(loss_fn, ones(4, 2))


CLASS_WEIGHT = tensor([0.1, 0.2, 0.05])


def weighted_mean(scores: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return (weight * F.cross_entropy(scores, y, reduction="none")).sum() / weight.sum(), weight.sum()


def weighted_classes(scores: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return F.cross_entropy(scores, y, CLASS_WEIGHT), CLASS_WEIGHT[y].sum()


@pytest.mark.parametrize("loss_fn", [weighted_mean, weighted_classes])
def test_weights_of_samples_may_add_up_to_less_than_one(loss_fn: Any) -> None:
    model = on_device(nn.Linear(2, 3))
    x, y, weight = rand(6, 2), labels([0, 1, 2, 2, 1, 1]), rand(6) / 4
    (truth,) = torch.autograd.grad(loss_fn(model(x), y, weight)[0], model.weight)
    before = model.weight.detach().clone()
    window = list(zip(x.split(2), y.split(2), weight.split(2), strict=True))
    gg.Accumulator(SGD(model.parameters(), lr=1.0)).step_window(
        lambda micro: loss_fn(model(micro[0]), *micro[1:]), window
    )  # a warning would be an error
    assert torch.allclose(before - model.weight.detach(), truth, rtol=0, atol=RTOL)
