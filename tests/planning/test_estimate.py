"""What is estimated is what a real pass holds: to the byte where fake tensors tell, within a percent elsewhere."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import gradgate as gg
from gradgate.planning import peak_memory

WIDTH, WORDS = 48, 50


class Transformer(nn.Module):
    def __init__(self, *, tied: bool = False, recompute: bool = False) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(WORDS, 32), nn.Embedding(WIDTH, 32)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.1) for _ in range(2)
        )
        self.head = nn.Linear(32, WORDS)
        self.recompute = recompute
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1])
        for block in self.blocks:
            h = checkpoint(block, h, mask, use_reentrant=False) if self.recompute else block(h, mask)
        return self.head(h)


def text(samples: int = 24) -> dict[str, Tensor]:
    torch.manual_seed(0)
    lengths = torch.randint(8, WIDTH + 1, (samples, 1))
    lengths[0] = WIDTH
    return {
        "ids": torch.randint(WORDS, (samples, WIDTH)),
        "mask": (torch.arange(WIDTH)[None] < lengths).long(),
    }


def language_model(model: nn.Module, *, autocast: bool = False) -> Callable[[Any], Tensor]:
    def loss_fn(batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["ids"].flatten())

    return loss_fn


def frozen_front() -> Transformer:
    model = Transformer()
    model.blocks[0].requires_grad_(False)
    return model


TEXTS = {
    "plain": lambda: language_model(Transformer()),
    "tied": lambda: language_model(Transformer(tied=True)),
    "recomputed": lambda: language_model(Transformer(recompute=True)),
    "autocast": lambda: language_model(Transformer(), autocast=True),
    "frozen": lambda: language_model(frozen_front()),
}


def images(samples: int = 64) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(samples, 1, 12, 12), torch.randint(10, (samples,))


def classifier(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda batch: F.cross_entropy(model(batch[0]), batch[1])


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(144, 96), nn.GELU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10)
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(12, 32, 2, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x[:, 0])[0][:, -1])


def tracked(loss_fn: Callable[[Any], Tensor], micro: Any) -> int:
    """Run a pass whose gradients stand already, as in all micro-batches but the first."""
    loss_fn(micro).backward()
    with peak_memory() as memory:
        loss = loss_fn(micro)
        loss.backward()
        del loss
    return memory.peak_bytes


@pytest.mark.parametrize("name", TEXTS)
def test_the_peak_of_texts_of_any_number_and_length(name: str) -> None:
    loss_fn, batch = TEXTS[name](), text()
    plan = gg.plan(loss_fn, batch, budget_bytes="1GiB", lengths="mask", trim=["ids", "mask"])
    assert plan.estimated
    for samples in (2, 7, 24):
        for length in (9, 30, WIDTH):
            micro = {key: value[:samples, :length].contiguous() for key, value in batch.items()}
            copied = sum(one.numel() * one.element_size() for one in micro.values())
            assert plan.peak_bytes(samples, length) == pytest.approx(
                copied + tracked(loss_fn, micro), rel=1e-3
            )


@pytest.mark.parametrize("make", [perceptron, convolutional])
def test_the_peak_of_any_number_of_images(make: Callable[[], nn.Module]) -> None:
    loss_fn, batch = classifier(make()), images()
    plan = gg.plan(loss_fn, batch, budget_bytes="1GiB")
    assert plan.estimated
    for samples in (1, 5, 64):
        micro = tuple(part[:samples] for part in batch)
        assert plan.peak_bytes(samples) == pytest.approx(tracked(loss_fn, micro), rel=1e-3)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: classifier(Recurrent()), "mkldnn_rnn_layer"),
        (lambda: asks_for_a_number(perceptron()), "_local_scalar_dense"),
        (lambda: goes_through_numpy(perceptron()), "numpy"),
    ],
)
def test_what_fakes_cannot_run_is_measured_and_said(make: Callable[[], Any], why: str) -> None:
    loss_fn, batch = make(), images()
    plan = gg.plan(loss_fn, batch, budget_bytes="1GiB")
    assert not plan.estimated
    assert why in plan.reason
    assert why in str(plan)
    for samples in (16, 32, 64):  # the work space of an LSTM is rounded up, in steps that are large for few
        micro = tuple(part[:samples] for part in batch)
        assert plan.peak_bytes(samples) == pytest.approx(tracked(loss_fn, micro), rel=1e-2)


def asks_for_a_number(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda batch: classifier(model)(batch) * (1.0 if batch[0].sum().item() > 0 else 2.0)


def goes_through_numpy(model: nn.Module) -> Callable[[Any], Tensor]:
    return lambda batch: classifier(model)((torch.from_numpy(batch[0].numpy() * 1), batch[1]))


QUEUE = torch.randn(40, 96)


def with_a_queue() -> Callable[[Any], Tensor]:
    """What older samples left is appended: sizes are linear in the samples, and more."""
    body, head = nn.Sequential(nn.Flatten(), nn.Linear(144, 96)), nn.Linear(96, 10)
    return lambda batch: head(torch.cat([body(batch[0]), QUEUE]).sigmoid()).square().mean()


def one_by_one() -> Callable[[Any], Tensor]:
    """A loop over the samples, which for a thousand of them would take long to follow."""
    model = perceptron()
    return lambda batch: torch.stack(
        [model(x[None].tanh().sin().cos()).square().mean() for x in batch[0]]
    ).mean()


@pytest.mark.parametrize("make", [with_a_queue, one_by_one])
def test_sizes_with_a_constant_part_and_operations_for_each_sample_are_estimated(
    make: Callable[[], Any],
) -> None:
    loss_fn, batch = make(), images()
    plan = gg.plan(loss_fn, batch, budget_bytes="1GiB")
    assert plan.estimated
    assert plan.estimate.aligned == (make is with_a_queue)
    for samples in (2, 5, 64) if make is with_a_queue else (4, 64):
        micro = tuple(part[:samples] for part in batch)
        assert plan.peak_bytes(samples) == pytest.approx(tracked(loss_fn, micro), rel=1e-3)


def test_a_peak_that_leaves_out_what_a_batch_norm_keeps_is_rejected() -> None:
    """The comparison can fail: half of the truth is not within its bounds."""
    loss_fn, batch = classifier(convolutional()), images()
    plan = gg.plan(loss_fn, batch, budget_bytes="1GiB")
    assert plan.peak_bytes(64) // 2 != pytest.approx(tracked(loss_fn, batch), rel=1e-2)


def test_a_pass_that_fails_leaves_no_hook_behind() -> None:
    model, batch = perceptron(), images()
    held = model(batch[0]).square().mean()  # another graph over the same parameters

    def fails(batch: Any) -> Tensor:
        return Failing.apply(classifier(model)(batch))

    with pytest.raises(RuntimeError, match="in the backward pass"):
        gg.plan(fails, batch, budget_bytes="1GiB")
    held.backward()
    assert all(one.grad is not None for one in model.parameters())


def test_a_plan_keeps_nothing_alive() -> None:
    def planned() -> tuple[gg.Plan, list[weakref.ref[Any]]]:
        model, batch = perceptron(), images()
        plan = gg.plan(classifier(model), batch, budget_bytes="1GiB")
        return plan, [weakref.ref(one) for one in (model, *model.parameters(), *batch)]

    plan, refs = planned()
    gc.collect()
    assert [ref() for ref in refs] == [None] * len(refs)
    assert plan.peak_bytes(3) > 0


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError("in the backward pass")


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_the_state_of_an_optimizer_is_known_before_its_first_step(kind: type[torch.optim.Optimizer]) -> None:
    model = perceptron()
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.1, **options)
    loss_fn, batch = classifier(model), images()
    estimated = gg.plan(loss_fn, batch, budget_bytes="1GiB", optimizer=optimizer).resident
    assert not optimizer.state
    loss_fn(batch).backward()
    optimizer.step()
    real = gg.plan(loss_fn, batch, budget_bytes="1GiB", optimizer=optimizer).resident
    assert estimated.state_bytes == real.state_bytes
    assert estimated.gradient_bytes == sum(one.numel() * 4 for one in model.parameters())
    assert real.allocated_bytes == real.total_bytes


@pytest.mark.parametrize("item", [False, True], ids=["fake", "measured"])
def test_only_memory_of_the_accelerator_counts(item: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The meta device is one that every torch has. Like a GPU, it gets its batch from the CPU."""
    model = perceptron().to("meta")
    optimizer = torch.optim.Adam(model.parameters())  # counts its steps on the CPU
    batch = images()

    def loss_fn(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        x = x * (2.0 if not item or x.sum().item() else 1.0)  # on the CPU
        return F.cross_entropy(model(x.to("meta")), y.to("meta"))

    asked = []
    monkeypatch.setattr(
        # private: of which device a plan asks the free memory
        "gradgate.planning._estimator.free_bytes",
        lambda device: asked.append(device.type) or 1 << 30,
    )
    plan = gg.plan(loss_fn, batch, optimizer=optimizer)
    assert plan.estimated != item
    assert set(asked) == {"meta"}
    parameters = sum(parameter.numel() * 4 for parameter in model.parameters())
    resident = plan.resident
    assert (resident.parameter_bytes, resident.gradient_bytes) == (parameters, parameters)
    assert resident.state_bytes == 2 * parameters
    there = tuple(part.to("meta") for part in batch)
    copied = batch[0].numel() * 4  # the labels are freed before the peak
    inputs = gg.plan(
        lambda batch: F.cross_entropy(model(batch[0]), batch[1]), there, budget_bytes="1GiB"
    ).peak_bytes(len(batch[0]))
    assert plan.peak_bytes(len(batch[0])) == pytest.approx(inputs + copied, rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("make", [perceptron, convolutional, Transformer])
def test_the_peak_on_a_gpu_is_what_its_allocator_sees(make: Callable[[], nn.Module]) -> None:
    torch.cuda.empty_cache()
    model = make().cuda()
    loss_fn: Callable[[Any], Tensor]
    if make is Transformer:
        batch: Any = torch.randint(WORDS, (256, WIDTH), device="cuda")

        def loss_fn(ids: Tensor) -> Tensor:
            h = model.embed(ids) + model.place.weight
            for block in model.blocks:
                h = block(h)
            return F.cross_entropy(model.head(h).flatten(0, 1), ids.flatten())
    else:
        batch = tuple(part.repeat(64, *[1] * (part.dim() - 1)).cuda() for part in images())
        loss_fn = classifier(model)
    plan = gg.plan(loss_fn, batch, budget_bytes="8GiB")
    for _ in range(2):  # gradients stand, and libraries have their work space
        loss_fn(batch).backward()
    stood = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss_fn(batch).backward()
    seen = torch.cuda.max_memory_allocated() - stood
    samples = len(batch if isinstance(batch, Tensor) else batch[0])
    assert plan.peak_bytes(samples) == pytest.approx(seen, rel=0.05)
