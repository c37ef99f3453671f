"""The loop under test: the same training with gradgate, in micro-batches, over ranks, wrapped."""

import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler

import gradgate as gg
from tests.laws.fuzz.data import Fields
from tests.laws.fuzz.losses import Loss
from tests.laws.fuzz.models import GATES
from tests.laws.fuzz.scenario import Scenario
from tests.laws.fuzz.trainer import CLIP_NORM, CLIP_VALUE, DECAY, Rows, Trainer, logits_of

Most = tuple[int, str]


def _sharded(net: Any, **options: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    fully_shard(net.body, mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)
    return net  # type: ignore[no-any-return]


def _ddp(net: nn.Module, **options: Any) -> nn.Module:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(net, **options)


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda net: net,
    "compiled": lambda net: torch.compile(net, backend="eager"),
    "compiled, aot": lambda net: torch.compile(net, backend="aot_eager"),
    "ddp": _ddp,
    "ddp, unused": lambda net: _ddp(net, find_unused_parameters=True),
    "ddp, views": lambda net: _ddp(net, gradient_as_bucket_view=True),
    "fsdp": _sharded,
    "fsdp, gathered": lambda net: _sharded(net, reshard_after_forward=False),
    "fsdp, resharded": lambda net: _sharded(net, reshard_after_forward=True),
}


class Loop(Trainer):
    """One rank of the loop.

    Attributes:
        called: the net as the loop calls it, its wrapper included.
        parameters: as the optimizers have them, which under ``fully_shard`` are shards.
        evaluates: before each forward pass of a window.
        most: how many samples fit, and in which pass memory runs out with more; None: all fit.
    """

    def __init__(self, scenario: Scenario, rank: int = 0) -> None:
        super().__init__(scenario, GATES[scenario.gate][0])
        self.rank = rank
        self.most: Most | None = None
        self.evaluates = False
        self.called = WRAPPERS[scenario.wrapper](self.net)
        self.parameters = list(self.net.parameters())
        self.make_optimizers()
        self.make_accumulator()

    def make_accumulator(self) -> None:
        s = self.scenario
        self.scaler = GradScaler("cpu", init_scale=1024.0) if s.scaler else None
        self.accumulator = gg.Accumulator(
            self.optimizers,
            model=self.called if s.given_model or s.ranks > 1 else None,
            clip_norm=CLIP_NORM if s.clip == "norm" else None,
            clip_value=CLIP_VALUE if s.clip == "value" else None,
            scheduler=self.schedulers or None,
            scaler=self.scaler,
            nonfinite=s.nonfinite,  # type: ignore[arg-type]
            clear=gg.decay(DECAY) if s.clear == "decay" else s.clear,  # type: ignore[arg-type]
            undo_step=s.undo_step,
            sync=s.sync,  # type: ignore[arg-type]
        )

    # -- batches and losses -----------------------------------------------------------------------

    def logits(self, fields: Fields) -> Tensor:
        """Run the net, in which memory runs out where the scenario says so."""
        if self.evaluates:
            self.evaluate(train=False, grad=False)
        logits = logits_of(self.called, fields)
        if self.most is not None and len(logits) > self.most[0]:
            if self.most[1] == "forward":
                raise torch.OutOfMemoryError("out of memory, as if")
            if logits.requires_grad:
                logits.register_hook(_run_out)
        return logits

    def evaluate(self, *, train: bool, grad: bool) -> Tensor:
        """Run the net on some samples, outside of any update."""
        counted = getattr(self.net.body, "counts", None)
        if counted is not None:
            self.net.body.counts = False
        self.called.train(train)
        with torch.set_grad_enabled(grad):
            logits = logits_of(self.called, self.fields_of([0, 1]))
        self.called.train()
        if counted is not None:
            self.net.body.counts = True
        return logits

    def loss_fn(self, batch: Any) -> Any:
        """Return the first loss, and its count if it is given."""
        fields, loss = self.layout.unpack(batch), self.losses[0]
        value = loss.value(self.logits(fields), fields, self.net)
        count = given(loss, fields)
        return value if count is None else (value, count)

    def add_losses(self, update: Any, rows: Rows) -> None:
        fields = self.fields_of(rows)
        logits = self.logits(fields)
        for number, loss in enumerate(self.losses):
            update.backward(
                loss.value(logits, fields, self.net),
                count=given(loss, fields),
                reduction=loss.reduction,
                name=f"loss {number}" if self.scenario.named else None,
                into=self.net.head if self.scenario.into and number == 1 else None,
                retain_graph=number + 1 < len(self.losses),
            )

    # -- what is saved and compared ---------------------------------------------------------------

    def parts(self) -> list[Any]:
        scaler = [] if self.scaler is None else [self.scaler]
        return [self.net, *self.optimizers, *self.schedulers, *scaler, self.accumulator]

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        torch.save([part.state_dict() for part in self.parts()], file)
        return file

    def load(self, file: io.BytesIO) -> None:
        """Go on in what might be another process."""
        trained = {name: p.requires_grad for name, p in self.net.named_parameters()}
        body, late = self.net.body, self.head_is_late
        super().__init__(self.scenario, GATES[self.scenario.gate][0])
        self.head_is_late = late
        for name, parameter in self.net.named_parameters():
            parameter.requires_grad_(trained[name])
        if hasattr(body, "plain"):
            self.net.body.plain, self.net.body.number = body.plain, body.number
        self.called = WRAPPERS[self.scenario.wrapper](self.net)
        self.parameters = list(self.net.parameters())
        self.make_optimizers()
        self.make_accumulator()
        file.seek(0)
        for part, state in zip(self.parts(), torch.load(file, weights_only=True), strict=True):
            part.load_state_dict(state)

    def values(self) -> list[Tensor]:
        """The whole parameters."""
        return [getattr(p.detach(), "full_tensor", p.detach)().clone() for p in self.parameters]


def given(loss: Loss, fields: Fields) -> Any:
    if loss.given == "left out":
        return None
    items = loss.items(fields)
    return items if loss.given == "tensor" else items.item()


def _run_out(gradient: Tensor) -> None:
    raise torch.OutOfMemoryError("out of memory, as if")
