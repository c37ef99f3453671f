"""Search for long: ``python -m tests.laws.fuzz --minutes 60 [--ranks 2]``. No failure ends the search."""

import argparse
import collections
import importlib
import itertools
import logging
import random
import time
import traceback
import warnings
from collections.abc import Iterator

import torch

from gradgate.errors import GradgateWarning
from tests.laws.fuzz.draw import in_one_process, over_ranks
from tests.laws.fuzz.ranks import verdicts
from tests.laws.fuzz.scenario import Scenario
from tests.laws.fuzz.verdict import judge, train

_TOGETHER = 25  # scenarios in one group of processes


def verdict_of(scenario: Scenario) -> tuple[str, int]:
    """Return what is wrong, and how many windows were compared."""
    try:
        outcomes = train(scenario)
        return judge(scenario, [outcomes]), len(outcomes) - bool(outcomes[-1].refused)
    except Exception as error:  # noqa: BLE001
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"raised {type(error).__name__}: {error} ({where.filename}:{where.lineno})", 0


def searched(arguments: argparse.Namespace) -> Iterator[tuple[int, Scenario, str, int]]:
    """Yield a seed, its scenario, what is wrong with it, and how many windows were compared; without end."""
    for seed in itertools.count(arguments.seed, _TOGETHER):
        dice = {number: random.Random(number).choice for number in range(seed, seed + _TOGETHER)}
        if arguments.ranks > 1:
            runs = [(over_ranks(choose, arguments.ranks), "") for choose in dice.values()]
            for number, (scenario, _), (wrong, windows) in zip(dice, runs, verdicts(runs), strict=True):
                yield number, scenario, wrong, windows
            continue
        for number, choose in dice.items():
            scenario = in_one_process(choose, compiled=arguments.compiled, uncounted=not arguments.counted)
            yield number, scenario, *verdict_of(scenario)
            if arguments.compiled:
                torch._dynamo.reset()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.laws.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first scenario")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--compiled", action="store_true", help="run nets through torch.compile, too")
    parser.add_argument(
        "--counted", action="store_true", help="leave out losses whose counts may be asked for"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    if arguments.compiled:  # torch.compile warns of what it does itself, and two losses retain the graph
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", GradgateWarning)
        importlib.import_module("torch._functorch.config").donated_buffer = False
    warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")
    warnings.filterwarnings("ignore", message="backward: the graph holds gg.clip_gradient")
    logging.getLogger("gradgate").setLevel(logging.ERROR)
    start, tally = time.monotonic(), collections.Counter[str]()
    for seed, scenario, wrong, windows in searched(arguments):
        tally.update(scenarios=1, windows=windows, failures=bool(wrong))
        if wrong:
            print(f"FAILED seed {seed}: {wrong}\n    {scenario!r}", flush=True)
        if seed % 500 == 0:
            print(f"{time.monotonic() - start:.0f} s: {dict(tally)}", flush=True)
        if time.monotonic() - start > 60 * arguments.minutes:
            break
    print(f"{time.monotonic() - start:.0f} s: {dict(tally)}", flush=True)


if __name__ == "__main__":
    main()
