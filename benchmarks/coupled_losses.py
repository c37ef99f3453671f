"""What does a loss over a whole window cost, when only a part of it is in memory at a time?

The variants take turns: the whole batch at once, `update.backward_coupled` with micro-batches of several sizes, of
which the last one is encoded only once, and three others where they are installed: GradCache (`pip install
gradcache`), the cached loss of sentence-transformers, and OpenCLIP's `--accum-freq`. OpenCLIP needs torchvision and
its own models, so its loop is written here after `open_clip_train/train.py` of version 3.3. All compute the same
gradient of the same loss, with the plain formula. The whole batch is the first row, so ratios are relative to it.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from _alternate import alternate, arguments, report, table
from torch import Tensor, nn

import gradgate as gg
from gradgate.planning import peak_memory

BATCH, MICRO_BATCH, WIDTH = 512, 32, 768


def towers(device: str) -> nn.ModuleList:
    torch.manual_seed(0)
    layers = (
        (nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 64))
        for _ in range(2)
    )
    return nn.ModuleList(nn.Sequential(*each) for each in layers).to(device)


def contrastive(left: Tensor, right: Tensor) -> Tensor:
    logits = F.normalize(left, dim=1) @ F.normalize(right, dim=1).T / 0.07
    return F.cross_entropy(logits, torch.arange(len(left), device=left.device))


class Trained:
    """Two towers, their optimizer and one batch of pairs."""

    def __init__(self, device: str) -> None:
        self.model = towers(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        self.accumulator = gg.Accumulator(self.optimizer, model=self.model)
        torch.manual_seed(1)
        self.batch = torch.randn(2, BATCH, WIDTH, device=device)
        self.window = list(zip(*(side.split(MICRO_BATCH) for side in self.batch), strict=True))

    def encode(self, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return self.model[0](pair[0]), self.model[1](pair[1])

    def whole(self) -> None:
        contrastive(*self.encode((self.batch[0], self.batch[1]))).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def coupled(self, size: int) -> None:
        window = list(zip(*(side.split(size) for side in self.batch), strict=True))
        with self.accumulator.update() as update:
            update.backward_coupled(self.encode, window, lambda z: contrastive(*z))


def with_gradcache(trained: Trained) -> partial[None]:
    """Return an update by GradCache. Raises ImportError if it is not installed."""
    try:
        import grad_cache
    except ImportError:  # the wheel installs it under another name than it imports itself
        import importlib.util

        found = importlib.util.find_spec("gradcache")
        if found is None or not found.submodule_search_locations:
            raise
        folder = Path(next(iter(found.submodule_search_locations)))
        spec = importlib.util.spec_from_file_location(
            "grad_cache", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        assert spec.loader is not None
        grad_cache = sys.modules["grad_cache"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(grad_cache)
    cache = grad_cache.GradCache(models=list(trained.model), chunk_sizes=MICRO_BATCH, loss_fn=contrastive)

    def run() -> None:
        cache(trained.batch[0], trained.batch[1])
        trained.optimizer.step()
        trained.optimizer.zero_grad()

    return partial(run)


class Sides(nn.Module):
    """Both towers, as a model of sentence-transformers: features in, a sentence embedding out."""

    def __init__(self, towers: nn.ModuleList) -> None:
        super().__init__()
        self.towers = towers

    def forward(self, features: dict[str, Any]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.towers[features["side"]](features["input_ids"])}


def with_sentence_transformers(trained: Trained) -> partial[None]:
    """Return an update by its cached loss, of the same two towers. Raises ImportError if it is not installed."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss

    model = SentenceTransformer(modules=[Sides(trained.model)], device=trained.batch.device)
    loss_fn = CachedMultipleNegativesRankingLoss(model, scale=1 / 0.07, mini_batch_size=MICRO_BATCH)

    def run() -> None:
        loss_fn(
            [{"input_ids": side, "side": number} for number, side in enumerate(trained.batch)], None
        ).backward()
        trained.optimizer.step()
        trained.optimizer.zero_grad()

    return partial(run)


def as_open_clip(trained: Trained) -> None:
    """Update as OpenCLIP does with `--accum-freq`: the loss of the whole window again for each micro-batch."""
    with torch.no_grad():
        cached = [trained.encode(pair) for pair in trained.window]
    for number, pair in enumerate(trained.window):
        codes = [*cached[:number], trained.encode(pair), *cached[number + 1 :]]
        contrastive(*map(torch.cat, zip(*codes, strict=True))).backward()
    trained.optimizer.step()
    trained.optimizer.zero_grad()


def if_installed(make: Callable[[Trained], partial[None]], trained: Trained) -> partial[None] | ImportError:
    try:
        return make(trained)
    except ImportError as missing:
        return missing


def main() -> None:
    question = "A loss over a whole window, a part of it in memory at a time"
    given = arguments(question)
    trained = Trained(given.device)
    ways = {"whole batch at once": trained.whole}
    for size in (MICRO_BATCH, 128, 256):
        ways[f"backward_coupled, micro-batches of {size}"] = partial(trained.coupled, size)
    notes = []
    for name, make in (("GradCache", with_gradcache), ("sentence-transformers", with_sentence_transformers)):
        way = if_installed(make, trained)
        if isinstance(way, ImportError):
            notes.append(f"{name} was not run: {way}.\n")
        else:
            ways[name] = way
    ways["OpenCLIP's --accum-freq, written here"] = partial(as_open_clip, trained)
    gradients = {}
    handle = trained.optimizer.register_step_pre_hook(
        lambda *_: gradients.update(now=torch.cat([p.grad.flatten() for p in trained.model.parameters()]))
    )
    rows = ["| variant | off by, relative to the largest entry | peak, MiB |", "|---|---|---|"]
    expected = None
    for name, way in ways.items():
        way()
        with peak_memory() as memory:
            way()
        expected = gradients["now"].clone() if expected is None else expected
        off = float((gradients["now"] - expected).abs().max() / expected.abs().max())
        rows.append(f"| {name} | {off:.0e} | {memory.peak_bytes / 2**20:.1f} |")
    handle.remove()
    results = alternate(ways, rounds=given.rounds or 15, warm_up=2, device=given.device)
    title = f"{BATCH} pairs in micro-batches of {MICRO_BATCH}"
    sections = [
        table(title, results),
        "### The gradient, and peak memory\n\n" + "\n".join(rows) + "\n",
        *notes,
    ]
    report(question, sections, given.write)


if __name__ == "__main__":
    main()
