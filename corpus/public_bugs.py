"""Check a bug of a public library: once with the version that has it, once with the version that fixed it.

    python -m corpus.public_bugs [transformers_short_window ...]

corpus/public/bugs.json names the versions. Each is installed without its dependencies into a folder of its own in
build/public, beside the packages that gradgate is tested with. The scripts train tiny random models and download
nothing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from corpus.scripts import FOLDER

PLACE = FOLDER.parent / "build" / "public"


def installed(requirements: Sequence[str]) -> Path:
    """Return the folder that holds these packages; install them if it isn't there."""
    folder = PLACE / "+".join(requirement.replace("==", "-") for requirement in requirements)[:100]
    if not folder.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*command, *requirements], check=True)
    return folder


def findings(script: Path, folders: Sequence[Path]) -> list[str]:
    """Check a script with the packages of these folders; return each finding, or why there was no check."""
    with tempfile.TemporaryDirectory() as place:
        report = Path(place, "report.json")
        words = ["-W", "ignore", "-m", "gradgate", "check", "--output", str(report), str(script)]
        path = os.pathsep.join([*map(str, folders), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path}
        ran = subprocess.run(
            [sys.executable, *words], cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        if ran.returncode not in (0, 1) or not report.exists():
            return [f"it failed: {ran.stderr.strip().splitlines()[-1:]}"]
        found = json.loads(report.read_text("utf-8"))["findings"]
        return [f"{one['severity']} {one['code']} at {Path(one['file']).name}:{one['line']}" for one in found]


def main() -> None:
    """Read the command line, and print what gradgate says of each bug and of its twin."""
    bugs = {bug["script"]: bug for bug in json.loads((FOLDER / "public" / "bugs.json").read_text("utf-8"))}
    parser = argparse.ArgumentParser(
        prog="python -m corpus.public_bugs", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("bugs", nargs="*", choices=[*bugs, []], help="by default all")
    for name in parser.parse_args().bugs or bugs:
        bug = bugs[name]
        common = [installed(bug["both"])] if bug["both"] else []
        for version in ("wrong", "right"):
            said = findings(FOLDER / "public" / f"{name}.py", [installed(bug[version]), *common])
            print(f"{version:5}  {' '.join(bug[version]):32}  {'; '.join(said) or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
