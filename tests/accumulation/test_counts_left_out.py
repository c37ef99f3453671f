"""A count that is left out is read where the graph proves it, and asked for anywhere else: never guessed.

Every loss is tried on unequal micro-batches against the whole batch's gradient by plain autograd. It is exact or
refused; there is no third case.
"""

import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

import gradgate as gg

# private: the count that a graph proves, read without an update; a torch that shows no shapes
from gradgate.accumulation._counts import checked_count
from gradgate.autograd_graph import _losses
from gradgate.errors import CountError
from tests.accumulation.losses import ASKED, BY_SIZE, ELEMENTS, READ, Batch, Loss, Net, batch, ce, net
from tests.reference import error
from tests.tensors import RTOL

LOSSES: dict[str, Loss] = {name: loss for name, (loss, _) in READ.items()} | ASKED | BY_SIZE

ALWAYS_READ = [(6,), (2, 4), (3, 3)]
SPLITS = [*ALWAYS_READ, (1, 5), (3, 1, 2), (1,) * 6]

# Couple samples in a way that a micro-batch of a single sample does not show: [1, 1] may be a row or a column.
HIDDEN_IN_ONE_SAMPLE = {
    *("listwise, viewed", "broadcast against the targets"),
    *("gathered as often as there are samples", "gathered from all but the last"),
}


def count_in_graph(loss: Tensor) -> float | None:
    """Return the count that is read from a loss, or None if it is asked for."""
    try:
        count = float(checked_count(loss, None, "mean"))
    except CountError:
        return None
    return None if math.isnan(count) else count  # on a device, a refusal must not synchronize


def gradients(loss: Tensor, model: nn.Module) -> list[Tensor]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]


def weighed(loss: Loss, model: Net, parts: Sequence[Batch]) -> tuple[list[Tensor], list[float]] | None:
    """Return the gradient of micro-batches weighed by the counts that are read, and these; None if one is not."""
    counts, sums = [], []
    for part in parts:
        value = loss(model, part)
        count = count_in_graph(value)
        if count is None:
            return None
        counts.append(count)
        sums.append([count * gradient for gradient in gradients(value, model)])
    return [sum(column) / sum(counts) for column in zip(*sums, strict=True)], counts  # type: ignore[misc]


@pytest.mark.parametrize("name", LOSSES)
def test_a_count_is_read_exactly_or_asked_for(name: str) -> None:
    model, whole = net(), batch()
    expected = gradients(LOSSES[name](model, whole), model)
    for split in SPLITS[: -1 if name in HIDDEN_IN_ONE_SAMPLE else None]:
        found = weighed(LOSSES[name], model, whole.split(split))
        if name in READ and split in ALWAYS_READ:
            assert found is not None
            assert sum(found[1]) == READ[name][1]
        if name in ASKED and split == (len(whole),):
            assert found is None
        if found is not None:
            off = error(found[0], expected)
            assert off <= RTOL, f"{split}: read wrongly, off by {off:.0%} of the largest gradient"


@pytest.mark.parametrize("samples", [1, 2])
def test_as_many_parameters_as_there_may_be_samples_are_not_taken_for_features(samples: int) -> None:
    model, (part, _) = net(), batch().split([samples, 6 - samples])
    assert count_in_graph((ce(model, part) * model.logs).mean()) is None


@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("flat", [lambda logits: logits.flatten(0, 1), lambda logits: logits.view(-1, 5)])
def test_texts_of_one_token_are_read_as_longer_ones_are(texts: int, flat: Callable[[Tensor], Tensor]) -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5))
    for length in (1, 2):
        ids = torch.zeros(texts, length, dtype=torch.int64)
        assert count_in_graph(F.cross_entropy(flat(model(ids)), ids.flatten())) == texts * length


def test_an_update_reads_and_asks_as_its_parts_do() -> None:
    model = net()
    accumulator = gg.Accumulator(SGD([p for p in model.parameters() if p.requires_grad], lr=0.0))
    with accumulator.update() as update:
        for part in update.micro_batches(batch().split([1, 5])):
            update.backward(READ["cross entropy, flat tokens"][0](model, part))
    assert update.count == 18
    complaint = (
        r"count is missing, and .* MulBackward0 weighs by a tensor without a graph.* count=mask.sum\(\)"
    )
    with pytest.raises(CountError, match=complaint), accumulator.update() as update:
        update.backward(ASKED["mask"](model, batch()))


def test_a_torch_that_does_not_show_shapes_is_asked_for_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_losses, "node_shape", SimpleNamespace(lost=True, loss="gradgate cannot read"))
    model = net()
    accumulator = gg.Accumulator(SGD([p for p in model.parameters() if p.requires_grad], lr=0.0))
    with (
        pytest.raises(CountError, match=r"gradgate cannot read.* count=len"),
        accumulator.update() as update,
    ):
        update.backward(READ["mse"][0](model, batch()))
    with accumulator.update() as update:
        update.backward(READ["mse"][0](model, batch()), count=ELEMENTS)
    assert update.stepped
