"""What does a gradient mistake cost? Seven of them, as written and corrected, with the same budget and seeds.

The first is the script ``examples/checked/diabetes.py`` beside ``diabetes_fixed.py``; ``--picture`` draws their
curves. The others are models and loops of the same size. Data comes with scikit-learn and with Python.
"""

import argparse
import random
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics

import torch
from _alternate import WRITE, report
from _curves import picture
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

ROOT = Path(__file__).parents[1]
CONTEXT = 4

Optimizers = Callable[[nn.Module], torch.optim.Optimizer]


def diabetes(seed: int, wrong: bool) -> list[float]:
    """Return R2 on the test set after each epoch of the script, which prints it after each tenth one."""
    script = ROOT / "examples/checked" / ("diabetes.py" if wrong else "diabetes_fixed.py")
    source, printed = script.read_text("utf-8"), []
    for text, instead in (("manual_seed(0)", f"manual_seed({seed})"), ("% 10 ==", "% 1 ==")):
        assert text in source
        source = source.replace(text, instead)
    exec(compile(source, str(script), "exec"), {"__name__": "__main__", "print": printed.append})
    return [float(re.findall(r"R2 (\S+)", line)[0]) for line in printed]


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return 1,400 images of 8 x 8 with their labels, and 397 others to test on."""
    data, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(data / 16, dtype=torch.float32).view(-1, 8, 8)[order], torch.tensor(labels)[order]
    return x[:1400], y[:1400], x[1400:], y[1400:]


def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return 100 * (model(x).argmax(1) == y).double().mean().item()


class Encoder(nn.Module):
    """A block of attention over the rows of an image, whose last two layers may be built in ``forward``."""

    def __init__(self, wrong: bool, width: int = 32) -> None:
        super().__init__()
        self.embed, self.position = nn.Linear(8, width), nn.Parameter(0.1 * torch.randn(8, width))
        self.qkv, self.hidden, self.head = (
            nn.Linear(width, 3 * width),
            nn.Linear(width, width),
            nn.Linear(width, 10),
        )
        self.last = None if wrong else nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x) + self.position
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        project, norm = self.last or (nn.Linear(self.width, self.width), nn.LayerNorm(self.width))
        x = norm(x + project(F.scaled_dot_product_attention(q, k, v)))
        return self.head((x + F.gelu(self.hidden(x))).mean(1))


def layers_in_forward(seed: int, wrong: bool) -> float:
    x, y, *test = digits(seed)
    model = Encoder(wrong)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(10):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return accuracy(model, *test)


def frozen_batch_norm(seed: int, wrong: bool) -> tuple[float, float]:
    """Return the accuracy on the new digits 5 to 9, and then on the old ones, 0 to 4, whose head is the same."""
    x, y, test_x, test_y = digits(seed)
    x, test_x = x[:, None], test_x[:, None]
    body = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32)
    )
    body.extend([nn.ReLU(), nn.Flatten()])

    def train(parameters: nn.Module, model: nn.Module, rows: Tensor, epochs: int, size: int) -> None:
        optimizer = torch.optim.Adam(parameters.parameters(), lr=1e-3)
        for _ in range(epochs):
            for part in rows[torch.randperm(len(rows))].split(size):
                optimizer.zero_grad()
                F.cross_entropy(model(x[part]), y[part] % 5).backward()
                optimizer.step()

    old, new = (nn.Sequential(body, nn.Linear(512, 5)) for _ in range(2))
    train(old, old, (y < 5).nonzero()[:, 0], 4, 32)
    body.requires_grad_(False)
    if not wrong:
        body.eval()
    train(new[1], new, (y >= 5).nonzero()[:200, 0], 10, 8)
    body.eval()
    later = test_y >= 5
    return accuracy(new, test_x[later], test_y[later] - 5), accuracy(old, test_x[~later], test_y[~later])


def clipped_before_unscaling(seed: int, wrong: bool, optimizer_of: Optimizers) -> float:
    x, y, *test = digits(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU())
    model.append(nn.Linear(1024, 10))
    optimizer, scaler = optimizer_of(model), torch.amp.GradScaler("cpu")
    for rows in torch.randperm(len(x)).split(32):
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x[rows]), y[rows])).backward()
        if not wrong:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return accuracy(model, *test)


def lines_of_text(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Return each line's contexts of four bytes, and the byte that follows."""
    lines = [
        line.strip().encode("ascii", "replace") for text in topics.values() for line in text.splitlines()
    ]
    lines = random.Random(seed).sample([line for line in lines if line], 1200)
    padded = [torch.tensor([0] * CONTEXT + list(line)) for line in lines]
    return [(line.unfold(0, CONTEXT, 1)[:-1], line[CONTEXT:]) for line in padded]


def means_of_tokens(seed: int, wrong: bool, optimizer_of: Optimizers) -> float:
    """Return the loss per byte on lines not seen. A micro-batch is a line; 8 of them are accumulated."""
    lines = lines_of_text(seed)
    model = nn.Sequential(nn.Embedding(128, 24), nn.Flatten(), nn.Linear(24 * CONTEXT, 128), nn.ReLU())
    model.append(nn.Linear(128, 128))
    optimizer = optimizer_of(model)
    for _ in range(3):
        for start in range(0, 1000, 8):
            window = lines[start : start + 8]
            tokens = sum(len(labels) for _, labels in window)
            for context, labels in window:
                weight = 1 / len(window) if wrong else len(labels) / tokens
                (F.cross_entropy(model(context), labels) * weight).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        context, labels = (torch.cat(parts) for parts in zip(*lines[1000:], strict=True))
        return F.cross_entropy(model(context), labels).item()


def undivided(seed: int, wrong: bool, optimizer_of: Optimizers, clip: float = torch.inf) -> float:
    x, y, *test = digits(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = optimizer_of(model)
    for _ in range(5):
        for rows in torch.randperm(len(x)).split(64):
            for part in rows.split(16):
                loss = F.cross_entropy(model(x[part]), y[part])
                (loss if wrong else loss * len(part) / len(rows)).backward()
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
    return accuracy(model, *test)


def leaking_gan(seed: int, wrong: bool) -> float:
    """Return the energy distance between 512 drawn points and a ring; 0 is the same distribution."""
    generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    discriminator = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    opt_g, opt_d = (
        torch.optim.Adam(net.parameters(), 1e-3, (0.5, 0.999)) for net in (generator, discriminator)
    )
    angle = 2 * torch.pi * torch.rand(512)
    ring = torch.stack([angle.cos(), angle.sin()], dim=1)
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    loss = F.binary_cross_entropy_with_logits
    for _ in range(60):
        for real in ring[torch.randperm(512)].split(64):
            fake = generator(torch.randn(64, 4))
            if not wrong:
                opt_d.zero_grad()
            (loss(discriminator(real), ones) + loss(discriminator(fake.detach()), zeros)).backward()
            opt_d.step()
            if wrong:
                opt_d.zero_grad()
            opt_g.zero_grad()
            loss(discriminator(fake), ones).backward()
            opt_g.step()
    with torch.no_grad():
        drawn = generator(torch.randn(512, 4))
        within = torch.cdist(drawn, drawn).mean() + torch.cdist(ring, ring).mean()
        return (2 * torch.cdist(drawn, ring).mean() - within).item()


def sgd(lr: float, momentum: float = 0.0) -> Optimizers:
    return lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)


def adamw(lr: float) -> Optimizers:
    return lambda model: torch.optim.AdamW(model.parameters(), lr=lr)


ACCURACY, LOSS = "test accuracy in %", "loss per byte"
# The mistake, its rule, what is measured, how many digits, and the run of a seed.
CASES: list[tuple[str, str, str, int, Callable[[int, bool], float]]] = [
    ("layers are built inside `forward`", "GG501", ACCURACY, 1, layers_in_forward),
    ("the generator's loss leaks into the discriminator's step", "GG203", "distance from the ring, 0 is best", 3,
     leaking_gan),
    ("clipped before unscaling, SGD", "GG302", ACCURACY, 1,
     lambda *run: clipped_before_unscaling(*run, sgd(0.05, 0.9))),
    ("the same, AdamW", "GG302", ACCURACY, 1, lambda *run: clipped_before_unscaling(*run, adamw(1e-4))),
    ("means of lines of unequal length, SGD and a clip", "GG103", LOSS, 3,
     lambda *run: means_of_tokens(*run, sgd(0.5))),
    ("the same, AdamW", "GG103", LOSS, 3, lambda *run: means_of_tokens(*run, adamw(2e-3))),
    ("4 micro-batches are not divided, SGD", "GG102", ACCURACY, 1, lambda *run: undivided(*run, sgd(0.5, 0.9))),
    ("the same, SGD and a clip", "GG102", ACCURACY, 1, lambda *run: undivided(*run, sgd(0.5, 0.9), 1.0)),
    ("the same, AdamW", "GG102", ACCURACY, 1, lambda *run: undivided(*run, adamw(3e-3))),
    ("a frozen batch norm drifts: the new classes", "GG505", ACCURACY, 1, lambda *run: frozen_batch_norm(*run)[0]),
    ("the same: the old classes, whose head is unchanged", "GG505", ACCURACY, 1,
     lambda *run: frozen_batch_norm(*run)[1]),
]  # fmt: skip


def spread(values: list[float], digits: int) -> str:
    low, mean, high = (
        f"{value:.{digits}f}" for value in (min(values), statistics.fmean(values), max(values))
    )
    return f"{mean} ({low} to {high})"


def row(name: str, code: str, measure: str, digits: int, runs: dict[bool, list[float]]) -> str:
    return f"| {name} | {code} | {measure} | {spread(runs[True], digits)} | {spread(runs[False], digits)} |"


def seeded(run: Callable[[int, bool], float], seed: int, wrong: bool) -> float:
    torch.manual_seed(seed)
    return run(seed, wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rounds", type=int, default=10, help="seeds of the first script; the others get half"
    )
    parser.add_argument("--write", action="store_true", help=WRITE)
    parser.add_argument(
        "--picture", type=Path, help="only draw the curves of the first script, into this file"
    )
    options = parser.parse_args()
    curves = {wrong: [diabetes(seed, wrong) for seed in range(options.rounds)] for wrong in (True, False)}
    if options.picture:
        options.picture.write_text(picture(curves[True], curves[False]), "utf-8")
        return
    last = {wrong: [curve[-1] for curve in curves[wrong]] for wrong in curves}
    rows = [row("predictions (N, 1) minus targets (N)", "GG107", "R2 on the test set", 2, last)]
    for name, code, measure, digits, run in CASES:
        runs = {
            wrong: [seeded(run, seed, wrong) for seed in range(options.rounds // 2)]
            for wrong in (True, False)
        }
        rows.append(row(name, code, measure, digits, runs))
        print(rows[-1], flush=True)
    head = ["| mistake | rule | measured | as written | corrected |", "|---|---|---|---|---|"]
    count = f"Mean and range of {options.rounds} seeds in the first row, of {options.rounds // 2} in the others.\n"
    report("What gradient mistakes cost", [count, *head, *rows, ""], options.write)


if __name__ == "__main__":
    main()
