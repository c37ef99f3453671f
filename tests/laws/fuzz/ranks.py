"""Scenarios over ranks: many of them in one group of processes."""

import traceback
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from tests.laws.fuzz.scenario import Scenario
from tests.laws.fuzz.verdict import Outcome, judge, train
from tests.laws.fuzz.ways import WRONG_OVER_RANKS
from tests.ranks.processes import together

Run = tuple[Scenario, str]
"""A scenario, and the known-wrong way that makes its updates, if any."""


def _train_all(rank: int, runs: Sequence[Run]) -> list[list[Outcome] | str]:
    """Run scenarios until one is refused or raises: the group may be of no use then."""
    found: list[list[Outcome] | str] = []
    for scenario, wrong in runs:
        try:
            found.append(train(scenario, rank, WRONG_OVER_RANKS.get(wrong)))
        except Exception as error:  # noqa: BLE001
            where = traceback.extract_tb(error.__traceback__)[-1]
            found.append(f"raised {type(error).__name__}: {error} ({where.filename}:{where.lineno})")
        if not _all_go_on(found[-1]):
            break
    return found


def _all_go_on(last: list[Outcome] | str) -> bool:
    """Return whether all ranks trained to the end."""
    went_well = torch.tensor(int(not isinstance(last, str) and not last[-1].refused))
    try:
        dist.all_reduce(went_well, op=dist.ReduceOp.MIN)
    except RuntimeError:  # another rank has gone
        return False
    return bool(went_well)


def verdicts(runs: Sequence[Run]) -> list[tuple[str, int]]:
    """Return for each run what is wrong, if anything, and how many windows were compared."""
    judged: list[tuple[str, int]] = []
    while len(judged) < len(runs):
        left = runs[len(judged) :]
        ranks: list[Any] = together(_train_all, left[0][0].ranks, left)
        if any(not isinstance(rank, list) for rank in ranks):
            judged.append((f"this or a later one: {ranks}", 0))
            continue
        for number in range(max(len(rank) for rank in ranks)):
            found = [rank[number] if number < len(rank) else "did not come so far" for rank in ranks]
            said = [f"rank {rank} {each}" for rank, each in enumerate(found) if isinstance(each, str)]
            windows = 0 if said else min(len(rank) for rank in found)
            judged.append(("; ".join(said) or judge(left[number][0], found), windows))
    return judged
