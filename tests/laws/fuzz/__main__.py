"""Search for long: ``python -m tests.laws.fuzz --minutes 60 [--ranks 2]``. Failures are kept, none ends the search."""

import argparse
import collections
import itertools
import random
import time
import traceback
import warnings

import torch

from tests.laws.fuzz.draw import in_one_process, over_ranks
from tests.laws.fuzz.scenario import Scenario
from tests.laws.fuzz.verdict import judge, train


def verdict_of(scenario: Scenario) -> tuple[str, int, bool]:
    """Return what is wrong, how many windows were compared, and whether the last one was refused."""
    try:
        outcomes = train(scenario)
        refused = bool(outcomes) and bool(outcomes[-1].refused)
        return judge(scenario, [outcomes]), len(outcomes) - refused, refused
    except Exception as error:  # noqa: BLE001
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"raised {type(error).__name__}: {error} ({where.filename}:{where.lineno})", 0, False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--compiled", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")
    end = time.monotonic() + 60 * arguments.minutes
    tally: collections.Counter[str] = collections.Counter()
    for seed in itertools.count(arguments.seed):
        if time.monotonic() > end:
            break
        scenario = in_one_process(random.Random(seed).choice, compiled=arguments.compiled)
        wrong, windows, refused = verdict_of(scenario)
        tally.update(scenarios=1, windows=windows, refused=refused, failures=bool(wrong))
        if wrong:
            print(f"FAILED seed {seed}: {wrong}\n    {scenario!r}", flush=True)
        if seed % 500 == 0:
            print(dict(tally), flush=True)
    print("done", dict(tally), flush=True)


if __name__ == "__main__":
    main()
