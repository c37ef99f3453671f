"""``gradgate env``: versions and devices, for a bug report."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

import gradgate

_PACKAGES = ("torch", "numpy", "accelerate", "lightning", "transformers", "rich", "typer", "plotly", "jinja2")


def print_environment() -> int:
    """Print a name and value per line, and return the exit code."""
    for name, value in _environment():
        sys.stdout.write(f"{name:13} {value}\n")
    return 0


def _environment() -> Iterator[tuple[str, str]]:
    yield "gradgate", gradgate.__version__
    yield "python", f"{platform.python_version()} ({platform.python_implementation()})"
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPUs"
    yield from ((package, _version(package)) for package in _PACKAGES)
    try:
        import torch
    except Exception as error:  # noqa: BLE001  (the bug report may be about a failing import of torch)
        yield "devices", f"torch cannot be imported: {error}"
        return
    for number in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(number)
        yield f"cuda:{number}", f"{device.name}, {device.total_memory / 2**30:.1f} GiB"
    if torch.cuda.is_available():
        yield "cuda", torch.version.cuda or torch.version.hip or "unknown"
    else:
        yield "devices", "mps" if torch.backends.mps.is_available() else "cpu only"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
