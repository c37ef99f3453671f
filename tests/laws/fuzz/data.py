"""Samples, and the containers that batches of them come in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tests.laws.fuzz.models import CLASSES, FEATURES, OF_WORDS
from tests.laws.fuzz.scenario import Scenario

POOL, TIME, IGNORED = 24, 6, -100

Fields = dict[str, Any]


class Pool:
    """All samples of a run; ``take`` gives some of them as fields."""

    def __init__(self, scenario: Scenario) -> None:
        generator = torch.Generator().manual_seed(scenario.seed)
        self.words = scenario.model in OF_WORDS
        self.dtype = torch.float64
        if self.words:
            self._draw_words(generator, left=scenario.left_padding)
        else:
            self.x = torch.randn(POOL, FEATURES, generator=generator, dtype=torch.float64)
            self.y = torch.randint(CLASSES, (POOL,), generator=generator)
            ignored = torch.rand(POOL, generator=generator) < 0.1
            if (
                scenario.model != "routed"
            ):  # an expert that only ignored samples reach gets no gradient, or zeros
                self.y[ignored] = IGNORED
        self.weight = torch.rand(POOL, generator=generator, dtype=torch.float64) + 1.0
        self.image = torch.randn(POOL, TIME, TIME, generator=generator, dtype=torch.float64)

    def _draw_words(self, generator: torch.Generator, *, left: bool) -> None:
        lengths = torch.randint(1, TIME + 1, (POOL,), generator=generator)
        lengths[0] = TIME
        columns = torch.arange(TIME)
        self.mask = (columns >= TIME - lengths[:, None]) if left else (columns < lengths[:, None])
        self.x = torch.randint(1, CLASSES, (POOL, TIME), generator=generator).where(self.mask, 0)
        self.y = torch.randint(CLASSES, (POOL, TIME), generator=generator).where(self.mask, IGNORED)

    def take(self, rows: Sequence[int]) -> Fields:
        """Return the fields of some samples, those of this kind of model."""
        index = torch.tensor(list(rows), dtype=torch.long)
        fields: Fields = {"x": self.x[index], "y": self.y[index], "weight": self.weight[index].to(self.dtype)}
        if self.words:
            fields |= {"mask": self.mask[index], "image": self.image[index].to(self.dtype)}
            fields["lengths"] = self.mask[index].sum(1).tolist()
        else:
            fields["x"] = fields["x"].to(self.dtype)
            fields["lengths"] = [1] * len(rows)
        return fields | {"names": [f"sample {row}" for row in rows]}


class Named(NamedTuple):
    x: Tensor
    y: Tensor
    weight: Tensor
    mask: Tensor | None
    lengths: list[int]


@dataclass
class Record:
    x: Tensor
    targets: dict[str, Any]
    mask: Tensor | None = None
    temperature: float = 1.0


@dataclass(frozen=True)
class Layout:
    """How fields are packed into a batch, and read from it again."""

    pack: Callable[[Fields], Any]
    unpack: Callable[[Any], Fields]
    words: bool | None = None  # None: for points and for words


def _nested(f: Fields) -> Any:
    return {
        "inputs": {"x": f["x"], "mask": f.get("mask")},
        "targets": (f["y"], f["weight"]),
        "meta": {"lengths": f["lengths"], "names": f["names"], "epoch": 3},
    }


def _of_nested(b: Any) -> Fields:
    assert len(b["meta"]["lengths"]) == len(b["meta"]["names"]) == len(b["targets"][0])
    return {**b["inputs"], "y": b["targets"][0], "weight": b["targets"][1]}


def _of_lists(b: Any) -> Fields:
    mask = torch.arange(b["x"].shape[1]) < torch.tensor(b["lengths"], dtype=torch.long)[:, None]
    return {**b, "weight": torch.tensor(b["weight"], dtype=torch.float64), "mask": mask}


LAYOUTS: dict[str, Layout] = {
    "dict": Layout(lambda f: {k: f[k] for k in ("x", "y", "weight", "mask") if k in f}, dict),
    "tuple": Layout(
        lambda f: (f["x"], f["y"], f["weight"], f["mask"]) if "mask" in f else (f["x"], f["y"], f["weight"]),
        lambda b: dict(zip(("x", "y", "weight", "mask"), b, strict=False)),
    ),
    "named tuple": Layout(
        lambda f: Named(f["x"], f["y"], f["weight"], f.get("mask"), f["lengths"]), lambda b: b._asdict()
    ),
    "dataclass": Layout(
        lambda f: Record(f["x"], {"y": f["y"], "weight": f["weight"]}, f.get("mask")),
        lambda b: {"x": b.x, **b.targets, "mask": b.mask},
    ),
    "nested": Layout(_nested, _of_nested),
    "one tensor": Layout(
        lambda f: torch.cat([f["x"], f["y"][:, None], f["weight"][:, None]], 1),
        lambda b: {"x": b[:, :FEATURES], "y": b[:, FEATURES].long(), "weight": b[:, -1]},
        words=False,
    ),
    "listed labels": Layout(
        lambda f: {"x": f["x"], "y": f["y"].tolist(), "weight": f["weight"].tolist()},
        lambda b: {
            "x": b["x"],
            "y": torch.tensor(b["y"], dtype=torch.long),
            "weight": torch.tensor(b["weight"], dtype=b["x"].dtype),
        },
        words=False,
    ),
    "listed lengths": Layout(
        lambda f: {"x": f["x"], "y": f["y"], "weight": f["weight"].tolist(), "lengths": f["lengths"]},
        _of_lists,
        words=True,
    ),
    "images": Layout(
        lambda f: {k: f[k] for k in ("image", "x", "mask", "y", "weight", "names")}, dict, words=True
    ),
}
