"""What the loop under test and the truth have in common: the net, its optimizers, and what both change alike."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR

from tests.laws.fuzz.data import LAYOUTS, Fields, Pool
from tests.laws.fuzz.losses import LOSSES
from tests.laws.fuzz.models import Gate, build
from tests.laws.fuzz.scenario import Scenario

Rows = Sequence[int]

CLIP_NORM, CLIP_VALUE, DECAY = 0.05, 0.01, 0.5


def joined(micro_batches: Iterable[Rows]) -> list[int]:
    return [row for rows in micro_batches for row in rows]


def logits_of(net: nn.Module, fields: Fields) -> Tensor:
    logits: Tensor = net(
        **{key: fields[key] for key in ("x", "mask", "image") if fields.get(key) is not None}
    )
    return logits


def optimizers_of(kind: str, owned: list[Tensor]) -> list[Optimizer]:
    """Make optimizers whose steps go with the gradient's size, so that an error shows as large as it is."""
    if kind == "two":
        return [SGD(owned[::2], lr=0.1, momentum=0.9), Adam(owned[1::2], lr=0.1, eps=1.0)]
    if kind == "sgd":
        return [SGD(owned, lr=0.1)]
    if kind == "adagrad":
        return [Adagrad(owned, lr=0.1, eps=1.0)]
    variant: dict[str, Any] = {word: True for word in ("fused", "foreach") if word in kind}
    if "adam" in kind:
        return [AdamW(owned, lr=0.1, eps=1.0, weight_decay=0.1, **variant)]
    return [SGD(owned, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, **variant)]


class Trainer:
    """A net and its optimizers; what is done between windows to both sides is a method here."""

    def __init__(self, scenario: Scenario, gate: Gate) -> None:
        self.scenario, self.pool = scenario, Pool(scenario)
        self.layout = LAYOUTS[scenario.layout]
        self.losses = [LOSSES[name] for name in scenario.losses]
        self.net = build(scenario.model, gate, scenario.seed, scenario.spoiled)
        self.head_is_late = scenario.late_head

    def batch(self, rows: Rows) -> Any:
        return self.layout.pack(self.pool.take(rows))

    def fields_of(self, rows: Rows) -> Fields:
        return self.layout.unpack(self.batch(rows))

    def make_optimizers(self) -> None:
        late = {id(p) for p in self.net.head.parameters()} if self.scenario.late_head else set()
        # What stays the number of a counter is no parameter to train.
        owned = [p for name, p in self.net.named_parameters() if id(p) not in late and "moment" not in name]
        self.optimizers = optimizers_of(self.scenario.optimizer, owned)
        if self.scenario.late_head and not self.head_is_late:
            self._add_head()
        self.schedulers: list[LRScheduler] = []
        if self.scenario.schedule:
            self.schedulers = [StepLR(each, step_size=1, gamma=0.8) for each in self.optimizers]

    def owned(self) -> list[Tensor]:
        return [p for each in self.optimizers for group in each.param_groups for p in group["params"]]

    def _add_head(self) -> None:
        self.optimizers[0].add_param_group({"params": list(self.net.head.parameters())})

    def add_head(self) -> None:
        if self.head_is_late:
            self.head_is_late = False
            self._add_head()

    def train_body(self, trained: bool) -> None:
        for name, parameter in self.net.body.named_parameters():
            if "moment" not in name:
                parameter.requires_grad_(trained)

    def change_rate(self) -> None:
        for each in self.optimizers:
            for group in each.param_groups:
                group["lr"] *= 0.7

    def clear(self) -> None:
        for each in self.optimizers:
            each.zero_grad()
