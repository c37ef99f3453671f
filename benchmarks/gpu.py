"""What holds on a GPU? Runs everything that needs one, and writes the figures into docs/performance.md.

    make gpu                # the same as python benchmarks/gpu.py --write
    make gpu DEVICE=cpu     # tries the parts that need no GPU, and only prints

Each part runs in a process of its own, so an error in one leaves the others intact. A part that needs CUDA says
"not run: no GPU" without it. The exit code is 1 if a part failed.
"""

import argparse
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from _alternate import alternate, cpu_name
from _gpu_page import written
from _models import Recurrent, Transformer, convolutional, exact_update, images, loss_of, texts, tiny
from torch import Tensor, nn

import gradgate as gg
from gradgate.planning import peak_memory

ROOT = Path(__file__).parents[1]
NO_GPU = "not run: no GPU"
OTHERS = ("large_batches", "planned_cut", "two_losses", "contrastive_losses", "coupled_losses")


def started(
    script: Path, device: str, rounds: int | None, *options: str
) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(script), "--device", device, *options]
    command += [] if rounds is None else ["--rounds", str(rounds)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


# -- tests and benchmarks ------------------------------------------------------------------------------


def tests(device: str, rounds: int | None) -> str:
    """The tests that are marked with ``gpu``."""
    if device == "cpu":
        return f"GPU-marked tests: {NO_GPU}\n"
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "gpu", "-p", "no:cacheprovider", "tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    summary = lines[-1].strip("= ") if lines else done.stderr.strip()[-200:]
    text = "\n".join([f"GPU-marked tests: {summary}", *(f"- `{line}`" for line in failed)]) + "\n"
    if done.returncode:
        raise AssertionError(text)
    return text


def time(device: str, rounds: int | None) -> str:
    """The time table: an update against the plain loop."""
    from time_per_update import sections

    return "\n".join(sections(device, rounds))


def others(device: str, rounds: int | None) -> str:
    """Other benchmarks in which the device matters."""
    sections = []
    for name in OTHERS:
        done = started(ROOT / "benchmarks" / f"{name}.py", device, rounds)
        done.check_returncode()
        body = re.sub(r"^# .*\n\n`.*\n", "", done.stdout)  # its heading, and how it was run
        sections.append(
            f"#### [{name}.py](../benchmarks/{name}.py)\n\n{re.sub('(?m)^###', '#####', body.strip())}\n"
        )
    return "\n".join(sections)


# -- plans ----------------------------------------------------------------------------------------------


def seen(device: str, run: Callable[[], object]) -> tuple[int, int | None]:
    """Return the bytes that a run adds at its peak: allocated, and reserved by the caching allocator."""
    if device == "cpu":
        with peak_memory() as memory:
            run()
        return memory.peak_bytes, None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before[0], torch.cuda.max_memory_reserved() - before[1]


def plans(device: str, rounds: int | None) -> str:
    """What ``gradgate.plan`` estimates, and what the allocator sees."""
    rows = [
        "| model, samples | estimated | allocated | ratio | reserved | ratio |",
        "|---|---|---|---|---|---|",
    ]
    sizes = (2, 8) if device == "cpu" else (64, 256)
    for name, model, batch_of in (
        ("transformer", Transformer(), texts),
        ("CNN", convolutional(), images),
        ("LSTM", Recurrent(), texts),
    ):
        model.to(device)
        batch = batch_of(sizes[-1], device)
        plan = gg.plan(lambda part, model=model: loss_of(model, part), batch, budget_bytes="1TiB")
        for samples in sizes:
            part = (batch[0][:samples], batch[1][:samples])
            for _ in range(2):  # gradients exist, and libraries have their workspaces
                loss_of(model, part).backward()
            allocated, reserved = seen(device, lambda model=model, part=part: loss_of(model, part).backward())
            estimated = plan.peak_bytes(samples)
            beside = "not run | no GPU" if reserved is None else f"{reserved:,} | {estimated / reserved:.3f}"
            rows.append(
                f"| {name}, {samples} | {estimated:,} | {allocated:,} | {estimated / allocated:.3f} | {beside} |"
            )
        model.zero_grad()
    how = "counted operation by operation" if device == "cpu" else "`torch.cuda.max_memory_allocated`"
    return "\n".join(rows) + f"\n\nBytes beside parameters and gradients. Allocated: {how}.\n"


# -- CUDA graphs ----------------------------------------------------------------------------------------


def trained(model: nn.Module, forward: Callable[[Tensor], Tensor], way: str, device: str) -> list[Tensor]:
    """Return the parameters after six updates of five micro-batches: warm-up, recording and replay of graphs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=model)
    torch.manual_seed(1)
    for _ in range(6):
        window = torch.randn(5, 4, 8, device=device).unbind()
        if way == "gradgate":
            with accumulator.update() as update:
                for x in update.micro_batches(window):
                    update.backward(forward(x).square().mean(), count=len(x))
        else:
            for x in window:
                (forward(x).square().mean() / len(window)).backward()
            optimizer.step()
            optimizer.zero_grad()
    return [parameter.detach() for parameter in model.parameters()]


def graphs(device: str, rounds: int | None) -> str:
    """Accumulation with CUDA graphs."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).to(device)

    def compiled(module: nn.Module) -> Any:
        # Without a GPU there are no CUDA graphs, and perhaps no compiler for C++.
        options = {"backend": "aot_eager"} if device == "cpu" else {"mode": "reduce-overhead"}
        return torch.compile(module, **options)

    def captured(module: nn.Module) -> Any:
        return torch.cuda.make_graphed_callables(module, (torch.randn(4, 8, device=device),))

    def error(way: str, wrap: Callable[[nn.Module], Any]) -> str:
        module, reference = model(), model()
        start = [parameter.detach().clone() for parameter in reference.parameters()]
        expected = trained(reference, reference, "plain", device)
        try:
            found = trained(module, wrap(module), way, device)
        except RuntimeError as failure:  # of a newer torch, which refuses instead of adding wrongly
            return f"`{type(failure).__name__}`: {str(failure).splitlines()[0][:80]}"
        moved = max(float((a - b).abs().max()) for a, b in zip(expected, start, strict=True))
        off = max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))
        return f"{off / moved:.1e}"

    compiling = "`torch.compile`, aot_eager, no graphs" if device == "cpu" else "`mode='reduce-overhead'`"
    ways = {compiling: compiled, "`make_graphed_callables`": captured}
    rows = ["| forward pass | plain loop | gradgate |", "|---|---|---|"]
    for name, wrap in ways.items():
        skip = device == "cpu" and wrap is captured
        found = [NO_GPU, NO_GPU] if skip else [error(way, wrap) for way in ("plain", "gradgate")]
        rows.append(f"| {name} | {found[0]} | {found[1]} |")
    return (
        "\n".join(rows)
        + "\n\nHow far parameters are off after six updates, relative to how far they moved.\n"
    )


# -- ranks ----------------------------------------------------------------------------------------------


@contextmanager
def process_group(device: str) -> Iterator[str]:
    import torch.distributed as dist

    backend = "gloo" if device == "cpu" else "nccl"
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group(backend, f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield backend
        finally:
            dist.destroy_process_group()


def ranks(device: str, rounds: int | None) -> str:
    """One rank: DistributedDataParallel, and ``fully_shard``, whose windows exchange counts over the backend."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def gradgate(wrap: Callable[[nn.Module], nn.Module]) -> tuple[list[Tensor], Callable[[], object]]:
        torch.manual_seed(0)
        model, batches = tiny(device)
        wrapped = wrap(model)
        accumulator = gg.Accumulator(torch.optim.SGD(wrapped.parameters(), lr=0.1), model=wrapped)
        exact_update(wrapped, batches, accumulator)
        full = [getattr(p, "full_tensor", lambda p=p: p)().detach().clone() for p in wrapped.parameters()]
        return full, lambda: exact_update(wrapped, batches, accumulator)

    alone, update = gradgate(lambda model: model)
    rows = ["| wrapper | difference to no wrapper | time of an update |", "|---|---|---|"]
    with process_group(device) as backend:
        mesh = init_device_mesh(device, (1,))
        for name, wrap in {
            "`DistributedDataParallel`": DistributedDataParallel,
            "`fully_shard`": lambda model: fully_shard(model, mesh=mesh),
        }.items():
            found, wrapped_update = gradgate(wrap)
            off = max(float((a - b).abs().max()) for a, b in zip(found, alone, strict=True))
            ratio = alternate({"no": update, name: wrapped_update}, rounds=rounds or 50, device=device)[name]
            rows.append(f"| {name} | {off:.1e} | {ratio.ratio:.2f} |")
    return "\n".join(rows) + f"\n\nOne rank over {backend}.\n"


# -- the section ----------------------------------------------------------------------------------------

PARTS: dict[str, tuple[str, Callable[[str, int | None], str]]] = {
    "tests": ("Tests", tests),
    "time": ("Time per update", time),
    "plans": ("Plans against the allocator", plans),
    "graphs": ("CUDA graphs", graphs),
    "ranks": ("NCCL on one device", ranks),
    "others": ("Other benchmarks", others),
}


def hardware(device: str) -> str:
    return cpu_name() if device == "cpu" else torch.cuda.get_device_name()


def machine(device: str) -> str:
    """Return the hardware and the versions."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    today = datetime.now(timezone.utc).date().isoformat()
    if device == "cpu":
        return f"{hardware(device)}, no GPU, {versions}, {today}"
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    cuda = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, NCCL {nccl}"
    return f"{hardware(device)}, {cpu_name()}, {versions}, {cuda}, {today}"


def run(part: str, device: str, rounds: int | None) -> tuple[str, bool]:
    """Run a part in a process of its own; return its text, and whether it passed."""
    done = started(Path(__file__), device, rounds, "--part", part)
    if done.returncode == 0:
        return done.stdout, True
    sys.stderr.write(done.stderr)
    last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    return f"failed: `{last[:300]}`\n", False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rounds", type=int, help="how often each variant runs")
    parser.add_argument("--part", choices=PARTS, help="print this part only")
    parser.add_argument(
        "--write", action="store_true", help="write a result, and a section of docs/performance.md"
    )
    given = parser.parse_args()
    if given.device != "cpu" and not torch.cuda.is_available():
        parser.error("torch finds no GPU on this machine. Try the parts that need none: --device cpu")
    if given.part is not None:
        print(PARTS[given.part][1](given.device, given.rounds))
        return 0
    results = {name: run(name, given.device, given.rounds) for name in PARTS}
    texts = (f"\n### {PARTS[name][0]}\n\n{text}" for name, (text, _) in results.items())
    section = re.sub(r"\n{3,}", "\n\n", "\n".join([f"{machine(given.device)}.", *texts]))
    print(section)
    if given.write:
        written(section, ROOT)
    return 0 if all(passed for _, passed in results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
