"""An operation that mixes samples is found in the graph of a loss, exactly where a split changes the gradient."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradgate.autograd_graph import inputs, mixing

SAMPLES, TIME, WIDTH, CLASSES, WORDS = 6, 5, 8, 3, 11

Batch = dict[str, Tensor]


def batch(size: int) -> Batch:
    return {
        "x": torch.randn(size, WIDTH, dtype=torch.float64),
        "sequence": torch.randn(size, TIME, WIDTH, dtype=torch.float64),
        "image": torch.randn(size, 3, 8, 8, dtype=torch.float64),
        "words": torch.randint(WORDS, (size, TIME)),
        "y": torch.arange(size) % CLASSES,
        "tags": torch.randint(CLASSES, (size, TIME)),
    }


def layers() -> nn.ModuleDict:
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "linear": nn.Linear(WIDTH, WIDTH),
            "head": nn.Linear(WIDTH, CLASSES),
            "conv": nn.Conv2d(3, WIDTH, 3, padding=1),
            "norm": nn.GroupNorm(2, WIDTH),
            "words": nn.Embedding(WORDS, WIDTH),
            "places": nn.Embedding(TIME, WIDTH),
            "batch first": nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True),
            "time first": nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0),
            "lstm": nn.LSTM(WIDTH, WIDTH, batch_first=True),
            "lstm, time first": nn.LSTM(WIDTH, WIDTH),
        }
    ).double()


def by_class(m: nn.ModuleDict, h: Tensor, b: Batch) -> Tensor:
    return F.cross_entropy(m["head"](h), b["y"])


def by_token(m: nn.ModuleDict, h: Tensor, b: Batch) -> Tensor:
    return F.cross_entropy(m["head"](h).flatten(0, 1), b["tags"].flatten())


def placed(m: nn.ModuleDict, b: Batch) -> Tensor:
    return m["words"](b["words"]) + m["places"](torch.arange(TIME))


def hidden(m: nn.ModuleDict, b: Batch) -> Tensor:
    return m["linear"](b["x"])


def batch_normalized(h: Tensor) -> Tensor:
    return (h - h.mean(0)) / (h.var(0) + 1e-5).sqrt()


def with_spread(h: Tensor) -> Tensor:
    return h + h.std(0).mean().expand_as(h)


def recomputed(m: nn.ModuleDict, b: Batch) -> Tensor:
    return checkpoint(m["linear"], hidden(m, b), use_reentrant=False)  # type: ignore[no-any-return]


Model = Callable[[nn.ModuleDict, Batch], Tensor]

MIXED: dict[str, Model] = {
    "batch_first forgotten, mean over time": lambda m, b: by_class(
        m, m["time first"](b["sequence"]).mean(1), b
    ),
    "batch_first forgotten in an LSTM": lambda m, b: by_class(
        m, m["lstm, time first"](b["sequence"])[0][:, -1], b
    ),
    "batch norm by hand": lambda m, b: by_class(m, batch_normalized(hidden(m, b)), b),
    "centred": lambda m, b: by_class(m, (h := hidden(m, b)) - h.mean(0, keepdim=True), b),
    "attention over the batch": lambda m, b: by_class(m, ((h := hidden(m, b)) @ h.T).softmax(-1) @ h, b),
    "softmax over the batch": lambda m, b: by_class(m, hidden(m, b).softmax(0), b),
    "normalized over the batch": lambda m, b: by_class(m, F.normalize(hidden(m, b), dim=0), b),
    "spread of the batch": lambda m, b: by_class(m, with_spread(m["conv"](b["image"])).mean((2, 3)), b),
    "centred, above a checkpoint": lambda m, b: by_class(m, (h := recomputed(m, b)) - h.mean(0), b),
    "centred, label smoothing": lambda m, b: F.cross_entropy(
        m["head"]((h := hidden(m, b)) - h.mean(0)), b["y"], label_smoothing=0.1
    ),
    "centred, two terms": lambda m, b: (
        by_class(m, hidden(m, b), b) + 0.5 * F.mse_loss(m["linear"]((h := hidden(m, b)) - h.mean(0)), b["x"])
    ),
}
APART: dict[str, Model] = {
    "layer": lambda m, b: by_class(m, hidden(m, b).relu(), b),
    "batch first, mean over time": lambda m, b: by_class(m, m["batch first"](placed(m, b)).mean(1), b),
    "batch first, first token": lambda m, b: by_class(m, m["batch first"](b["sequence"])[:, 0], b),
    "LSTM": lambda m, b: by_class(m, m["lstm"](b["sequence"])[0][:, -1], b),
    "time first": lambda m, b: by_class(m, m["time first"](b["sequence"].transpose(0, 1))[-1], b),
    "images": lambda m, b: by_class(m, m["norm"](m["conv"](b["image"])).relu().mean((2, 3)), b),
    "layer norm by hand": lambda m, b: by_class(m, (h := hidden(m, b)) - h.mean(1, keepdim=True), b),
    "checkpoint": lambda m, b: by_class(m, recomputed(m, b), b),
    "a term of the weights": lambda m, b: by_class(m, hidden(m, b), b) + m["head"].weight.pow(2).sum(),
}


def split_error(model: Model, modules: nn.ModuleDict, whole: Batch) -> float:
    """Return how far the mean over two halves is from the whole batch's gradient, relative to that gradient."""

    def gradient(part: Batch) -> Tensor:
        gradients = torch.autograd.grad(
            model(modules, part), list(modules.parameters()), allow_unused=True, materialize_grads=True
        )
        return torch.cat([each.flatten() for each in gradients])

    half = len(whole["y"]) // 2
    first, last = (
        {key: value[part] for key, value in whole.items()} for part in (slice(half), slice(half, None))
    )
    true = gradient(whole)
    return float(((gradient(first) + gradient(last)) / 2 - true).abs().max() / true.abs().max())


@pytest.mark.parametrize("name", [*MIXED, *APART])
def test_mixing_is_found_exactly_where_a_split_changes_the_gradient(name: str) -> None:
    model, modules = {**MIXED, **APART}[name], layers()
    whole = batch(SAMPLES)
    changed = split_error(model, modules, whole) > 1e-10  # float64, sums of some hundred numbers
    assert changed == (name in MIXED)
    assert (found(model(modules, whole)) is not None) == (name in MIXED)


def found(loss: Tensor) -> object:
    terms = [loss.grad_fn, *inputs(loss.grad_fn)]  # of a sum, its two terms
    return next((mixed for term in terms if (mixed := mixing(term))), None)


class _DDPSink(torch.autograd.Function):
    """Ties tensors together as DistributedDataParallel does with find_unused_parameters."""

    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensor.clone() for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return gradients


def test_the_search_goes_past_the_node_of_ddp() -> None:
    modules, whole = layers(), batch(SAMPLES)
    plain = modules["linear"](whole["x"])
    outputs = _DDPSink.apply(plain - plain.mean(0), plain.exp())
    mixed, apart = (F.cross_entropy(modules["head"](output), whole["y"]) for output in outputs)
    assert found(mixed) is not None
    assert found(apart) is None


# -- what looks alike, and is not judged -----------------------------------------------------------


def test_steps_of_a_single_sequence_are_not_samples() -> None:
    modules, whole = layers(), batch(1)
    assert found(by_token(modules, modules["batch first"](placed(modules, whole)), whole)) is None
    alone = modules["batch first"](whole["sequence"][0])  # [time, features]
    assert found(F.cross_entropy(modules["head"](alone), whole["tags"][0])) is None


def test_nodes_of_one_graph_may_be_mixed() -> None:
    modules, whole = layers(), batch(SAMPLES)
    h, edges = hidden(modules, whole), torch.randint(SAMPLES, (2, 20))
    gathered = h + torch.zeros_like(h).index_add(0, edges[0], h[edges[1]])
    assert found(by_class(modules, gathered, whole)) is None
    assert found(by_class(modules, h + torch.rand(SAMPLES, SAMPLES, dtype=h.dtype) @ h, whole)) is None


def test_a_gradient_that_is_not_finite_shows_nothing() -> None:
    modules, whole = layers(), batch(SAMPLES)
    h = hidden(modules, whole)
    assert found(by_class(modules, h / (h - h).abs().sqrt(), whole)) is None


# -- nothing runs again ------------------------------------------------------------------------------


def test_no_hook_no_module_and_no_generator_is_run() -> None:
    modules, whole, ran = layers().train(), batch(SAMPLES), list[str]()
    for module in modules.modules():
        module.register_forward_hook(lambda *_: ran.append("module"))
        module.register_full_backward_hook(lambda *_: ran.append("backward of a module"))
    h = F.dropout(recomputed(modules, whole), 0.5)
    h.register_hook(lambda _: ran.append("tensor"))
    for parameter in modules.parameters():
        parameter.register_hook(lambda _: ran.append("parameter"))
        parameter.register_post_accumulate_grad_hook(lambda _: ran.append("accumulated"))
    loss = by_class(modules, h - h.mean(0), whole)
    ran.clear()
    state = torch.get_rng_state()
    assert found(loss) is not None
    assert ran == []
    assert state.equal(torch.get_rng_state())
    assert all(parameter.grad is None for parameter in modules.parameters())


@pytest.mark.gpu
def test_recurrent_layers_of_a_gpu_are_read_too() -> None:
    for time_first in (False, True):
        name = "lstm, time first" if time_first else "lstm"
        modules = layers().float().cuda()
        out = modules[name](torch.randn(SAMPLES, TIME, WIDTH, device="cuda"))[0][:, -1]
        loss = F.cross_entropy(modules["head"](out), torch.arange(SAMPLES, device="cuda") % CLASSES)
        assert (found(loss) is not None) == time_first
