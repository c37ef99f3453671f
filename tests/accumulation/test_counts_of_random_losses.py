"""Losses put together at random: a count that is left out is refused, or exact."""

from collections.abc import Callable
from functools import partial

import torch
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from tests.accumulation.losses import CLASSES, TIME, Batch, Net, Opaque, batch, ce, net, token_ce
from tests.accumulation.test_counts_left_out import gradients, weighed
from tests.reference import error

# What a model puts out. Nothing of it mixes samples; that a layer or an opaque function takes in mixed ones is the
# model's affair, so these stand at the beginning only.
OUTPUTS: dict[str, Callable[[Net, Batch], Tensor]] = {
    "outputs": lambda m, b: m(b.x),
    "another head": lambda m, b: m.head(b.z),
    "one column": lambda m, b: m.one(b.x),
    "sequences": lambda m, b: m(b.seq),
    "time first": lambda m, b: m(b.seq.transpose(0, 1)),
    "images": lambda m, b: m.conv(b.image[:, :, :3, :2]),
    "embedded": lambda m, b: m.table(b.y),
    "product": lambda m, b: m(b.x) @ m.square,
    "scaled data": lambda m, b: m.scale * b.t,
    "opaque": lambda m, b: Opaque.apply(m(b.x)),
    "losses": ce,
    "losses of tokens": partial(token_ce, reduction="none"),
}

Operation = Callable[[Net, Batch, Tensor, Tensor, int, int], Tensor]


def index_add(m: Net, b: Batch, v: Tensor, w: Tensor, i: int, j: int) -> Tensor:
    return torch.zeros(CLASSES, *v.shape[1:], dtype=v.dtype).index_add(0, b.y, v)


def along_first(weight: Tensor, v: Tensor) -> Tensor:
    return weight.view(-1, *[1] * (v.dim() - 1))


# m, b: the model and the batch. v, w: the values so far, and another output. i, j: dimensions.
OPERATIONS: dict[str, Operation] = {
    # each element alone
    "tanh": lambda m, b, v, w, i, j: v.tanh(),
    "square": lambda m, b, v, w, i, j: v.square(),
    "softplus": lambda m, b, v, w, i, j: F.softplus(v),
    "numbers": lambda m, b, v, w, i, j: 1 - 0.5 * v / 3,
    "negative": lambda m, b, v, w, i, j: -v,
    "a parameter": lambda m, b, v, w, i, j: v * m.scale.exp() + m.scale,
    "parameters": lambda m, b, v, w, i, j: v * m.square[0] + m.one.bias,
    "a column of parameters": lambda m, b, v, w, i, j: v + m.logs[:, None],
    "a penalty": lambda m, b, v, w, i, j: v + m.square.square().mean(),
    "a slope": lambda m, b, v, w, i, j: F.prelu(v, m.scale.exp()[None]),
    "repeated parameters": lambda m, b, v, w, i, j: v * m.scale.expand(v.shape[i]),
    "a parameter for each": lambda m, b, v, w, i, j: v * m.square.flatten()[: v.shape[i]],
    "clamped": lambda m, b, v, w, i, j: v.clamp(-0.5, 2),
    "a target": lambda m, b, v, w, i, j: v - torch.ones_like(v),
    # two of them
    "sum": lambda m, b, v, w, i, j: v + w,
    "product": lambda m, b, v, w, i, j: v * w,
    "quotient": lambda m, b, v, w, i, j: v / (1 + w.square()),
    "cosine": lambda m, b, v, w, i, j: F.cosine_similarity(v, w, dim=i),
    "distance": lambda m, b, v, w, i, j: F.pairwise_distance(v, w),
    "maximum": lambda m, b, v, w, i, j: torch.maximum(v, w),
    "square of itself": lambda m, b, v, w, i, j: v * v,
    "with its transpose": lambda m, b, v, w, i, j: v - v.transpose(i, j),
    "all pairs": lambda m, b, v, w, i, j: v.unsqueeze(i) - v.unsqueeze(j),
    "all pairs of two": lambda m, b, v, w, i, j: v.unsqueeze(i) * w.unsqueeze(j),
    "minus its mean": lambda m, b, v, w, i, j: v - v.mean(i, keepdim=True),
    "minus the reversed": lambda m, b, v, w, i, j: v - v.flip(i),
    "minus the rolled": lambda m, b, v, w, i, j: v - v.roll(1, i),
    "matmul": lambda m, b, v, w, i, j: v @ w.transpose(-1, -2),
    "matmul of the transposed": lambda m, b, v, w, i, j: v.transpose(-1, -2) @ w,
    "einsum": lambda m, b, v, w, i, j: torch.einsum("bi,bj->ij", v, w),
    "normalised": lambda m, b, v, w, i, j: F.normalize(v, dim=i),
    "concatenated": lambda m, b, v, w, i, j: torch.cat([v, w], i),
    "stacked": lambda m, b, v, w, i, j: torch.stack([v, w], i),
    "stacked means": lambda m, b, v, w, i, j: torch.stack([v.mean(), w.square().mean()]),
    "stacked sums": lambda m, b, v, w, i, j: torch.stack([v.sum(i), v.square().sum(i)], j),
    # along dimensions
    "sum over": lambda m, b, v, w, i, j: v.sum(i),
    "sum over, kept": lambda m, b, v, w, i, j: v.sum(i, keepdim=True),
    "mean over": lambda m, b, v, w, i, j: v.mean(i),
    "mean over two": lambda m, b, v, w, i, j: v.mean((i, j)),
    "norm over": lambda m, b, v, w, i, j: (v + 3).norm(dim=i),
    "logsumexp over": lambda m, b, v, w, i, j: v.logsumexp(i),
    "maximum over": lambda m, b, v, w, i, j: v.amax(i),
    "variance over": lambda m, b, v, w, i, j: v.var(i, correction=0),
    "norm of all": lambda m, b, v, w, i, j: v + v.norm(),
    "pooled": lambda m, b, v, w, i, j: F.avg_pool2d(v, (2, 1)),
    "resized": lambda m, b, v, w, i, j: F.interpolate(v, (2, 3), mode="bilinear"),
    "layer norm": lambda m, b, v, w, i, j: F.layer_norm(v, v.shape[i:]),
    "softmax": lambda m, b, v, w, i, j: v.softmax(i),
    "log_softmax": lambda m, b, v, w, i, j: v.log_softmax(i),
    "cumsum": lambda m, b, v, w, i, j: v.cumsum(i),
    "sort": lambda m, b, v, w, i, j: (
        v.sort(i).values * torch.arange(1, v.shape[i] + 1).view(-1, *[1] * (-i - 1))
    ),
    "topk": lambda m, b, v, w, i, j: v.topk(1, i).values,
    "unfold": lambda m, b, v, w, i, j: v.unfold(i, 2, 1),
    "per class": index_add,
    # parts
    "select": lambda m, b, v, w, i, j: v.select(i, 0),
    "all but the last": lambda m, b, v, w, i, j: v.narrow(i, 0, v.shape[i] - 1),
    "the first four": lambda m, b, v, w, i, j: v[:4],
    "half": lambda m, b, v, w, i, j: v.chunk(2, i)[0],
    "taken apart": lambda m, b, v, w, i, j: v.unbind(i)[0] + v.unbind(i)[-1],
    "steps": lambda m, b, v, w, i, j: torch.stack([step.tanh() for step in v.unbind(i)], j),
    "positive ones": lambda m, b, v, w, i, j: v[v.detach() > 0],
    "gather": lambda m, b, v, w, i, j: v.gather(i, torch.zeros_like(v, dtype=torch.long)),
    "gather of one": lambda m, b, v, w, i, j: v.gather(
        i, torch.zeros_like(v.narrow(i, 0, 1), dtype=torch.long)
    ),
    "index": lambda m, b, v, w, i, j: v.index_select(i, torch.arange(v.shape[i]).flip(0)),
    "where": lambda m, b, v, w, i, j: torch.where(v.detach() > v.detach().mean(), v, 0 * v),
    # shapes
    "transpose": lambda m, b, v, w, i, j: v.transpose(i, j),
    "movedim": lambda m, b, v, w, i, j: v.movedim(i, j),
    "flatten": lambda m, b, v, w, i, j: v.flatten(),
    "flatten two": lambda m, b, v, w, i, j: v.flatten(min(i, j), max(i, j)),
    "rows": lambda m, b, v, w, i, j: v.reshape(-1, v.shape[-1]),
    "per sample": lambda m, b, v, w, i, j: v.reshape(len(b), -1),
    "one row": lambda m, b, v, w, i, j: v.reshape(1, -1),
    "as a column": lambda m, b, v, w, i, j: v.reshape(-1, 1),
    "in pairs": lambda m, b, v, w, i, j: v.reshape(-1, 2),
    "divided": lambda m, b, v, w, i, j: v.unflatten(i, (2, -1)),
    "in time": lambda m, b, v, w, i, j: v.reshape(len(b), TIME, -1),
    "unsqueeze": lambda m, b, v, w, i, j: v.unsqueeze(i),
    "squeeze": lambda m, b, v, w, i, j: v.squeeze(),
    "squeeze one": lambda m, b, v, w, i, j: v.squeeze(i),
    "expand": lambda m, b, v, w, i, j: v.expand(len(b), *[-1] * v.dim()),
    "expand ones": lambda m, b, v, w, i, j: v.expand([len(b) if size == 1 else size for size in v.shape]),
    "repeat": lambda m, b, v, w, i, j: v.repeat(len(b), *[1] * (v.dim() - 1)),
    # weights
    "weights": lambda m, b, v, w, i, j: v * along_first(b.weight / b.weight.sum(), v),
    "weights within": lambda m, b, v, w, i, j: along_first(b.weight / b.weight.mean(), v) * v,
    "learned weights": lambda m, b, v, w, i, j: v * w.softmax(i),
    "detached weights": lambda m, b, v, w, i, j: v * v.detach().softmax(i),
    "a statistic": lambda m, b, v, w, i, j: v / (1 + v.detach().square().mean()),
    "a learned statistic": lambda m, b, v, w, i, j: v / (1 + v.square().mean()),
    # losses
    "squares": lambda m, b, v, w, i, j: F.mse_loss(*torch.broadcast_tensors(v, w), reduction="none"),
    "cross entropies": lambda m, b, v, w, i, j: F.cross_entropy(
        v, torch.zeros_like(v.select(1, 0), dtype=torch.long), reduction="none"
    ),
}

ENDS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda v: v.mean(),
    "negative mean": lambda v: -v.mean(),
    "mean over 0": lambda v: v.mean(0),
    "mean of means": lambda v: v.mean(-1).mean(),
    "mean of sums": lambda v: v.sum(-1).mean(),
    "mse": lambda v: F.mse_loss(v, torch.ones_like(v)),
    "l1": lambda v: F.l1_loss(v, torch.full_like(v, 5.0)),
    "bce": lambda v: F.binary_cross_entropy_with_logits(v, torch.full_like(v, 0.5)),
    "cross entropy": lambda v: F.cross_entropy(v, torch.zeros_like(v.select(1, 0), dtype=torch.long)),
    "margin": lambda v: F.multi_margin_loss(v, torch.zeros_like(v.select(1, 0), dtype=torch.long)),
}

Step = tuple[str, str, int, int]
STEPS = st.tuples(
    st.sampled_from(sorted(OPERATIONS)),
    st.sampled_from(sorted(OUTPUTS)),
    st.integers(-3, -1),
    st.integers(-3, -1),
)
# Not one sample each: then every loss is a mean over samples, and what it would couple is not to be seen.
SPLITS = st.sampled_from(
    [[2, 4], [4, 2], [3, 3], [1, 5], [5, 1], [1, 2, 3], [3, 2, 1], [2, 2, 2], [1, 1, 4], [2, 1, 1, 2]]
)


def small(v: Tensor) -> Tensor:
    """Refuse pairs of pairs."""
    if v.numel() > 100_000:
        raise ValueError
    return v


def run(m: Net, b: Batch, start: str, steps: list[Step], kept: list[Step] | None = None) -> Tensor:
    """Go through the steps. With ``kept``, those that do not fit are left out, and the others noted there."""
    v = OUTPUTS[start](m, b)
    for step in steps:
        name, other, i, j = step
        try:
            v = small(OPERATIONS[name](m, b, v, OUTPUTS[other](m, b), i, j))
        except (RuntimeError, IndexError, ValueError):
            if kept is None:
                raise
        else:
            if kept is not None:
                kept.append(step)
    return v


def is_refused_or_exact(start: str, steps: list[Step], end: str, split: list[int]) -> None:
    m, b = net(), batch()
    kept: list[Step] = []
    v = run(m, b, start, steps, kept)

    def loss(m: Net, b: Batch) -> Tensor:
        return ENDS[end](run(m, b, start, kept))

    try:
        expected = gradients(ENDS[end](v), m)
        found = weighed(loss, m, b.split(split))
    except (RuntimeError, IndexError, ValueError):
        return  # a micro-batch that the code cannot handle, or no scalar
    largest = max(float(gradient.abs().max()) for gradient in expected)
    assume(1e-6 < largest < 1e6)
    event("refused" if found is None else "read")
    # Rounding is 1e-16 times what these operations lose. What is misread is off by percents.
    assert found is None or error(found[0], expected) < 1e-8, [
        start,
        *(step[0] for step in kept),
        end,
        found[1],
    ]


@settings(max_examples=max(400, settings.default.max_examples))  # type: ignore[union-attr]
@given(
    st.sampled_from(sorted(OUTPUTS)),
    st.lists(STEPS, max_size=5),
    st.sampled_from(sorted(ENDS)),
    SPLITS,
)
def test_a_count_of_a_random_loss_is_refused_or_exact(
    start: str, steps: list[Step], end: str, split: list[int]
) -> None:
    is_refused_or_exact(start, steps, end, split)
