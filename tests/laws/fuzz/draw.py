"""Draws scenarios. ``choose`` takes one of a sequence: Hypothesis's choice, which shrinks, or a seeded one."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from tests.laws.fuzz.between import IN_ONE_PROCESS, OVER_RANKS, WITH_DDP
from tests.laws.fuzz.data import LAYOUTS
from tests.laws.fuzz.losses import LOSSES, SECOND
from tests.laws.fuzz.models import BODIES, BY_MICRO_BATCH, CLIPS, GATES, MIXES, OF_WORDS
from tests.laws.fuzz.scenario import Scenario, Sizes, Window
from tests.laws.fuzz.ways import IN_LOOPS, WAYS

Choose = Callable[[Sequence[Any]], Any]

COUNTED = tuple(name for name, loss in LOSSES.items() if not loss.may_refuse)
WITHOUT_NET = tuple(
    name for name in COUNTED if "uncertain" not in name
)  # whose parameters are used in forward alone
OF_ITEMS = ("cross entropy", "cross entropy, counted", "cross entropy, weighted", "nll", "smoothed, counted")
HIDING = ("routed", "reentrant")  # bodies in which mixed samples can't be seen, or which are refused
SEEN_IN = ("loop", "generator", "windows", "step_window")
SMALL = (1, 2, 3, 4, 5, 6, 8)
OPTIMIZERS = ("momentum", "two", "sgd", "adagrad", "adamw", "sgd foreach", "adamw fused")
SEEDS = range(1000)


def _losses(names: Sequence[str], words: bool) -> list[str]:
    return [name for name in names if LOSSES[name].words or not words]


def in_one_process(choose: Choose, *, compiled: bool = False, uncounted: bool = True) -> Scenario:
    """Draw a loop of one process."""
    model = choose([name for name in BODIES if name != "reentrant"] * 3 + ["reentrant"])
    words = model in OF_WORDS
    gate = choose(
        ["none"] * 3 + [name for name in GATES if not (model == "complex" and name in BY_MICRO_BATCH)]
    )
    first = choose(_losses(list(LOSSES) if uncounted and choose([True, False]) else COUNTED, words))
    two = choose([False, False, True])
    stateful, sparse = model == "stateful", model == "sparse"
    left = words and model != "recurrent" and choose([False, False, True])
    layouts = [name for name, layout in LAYOUTS.items() if layout.words in (None, words)]
    scaler = model != "complex" and choose([False, False, False, True])
    late_head = model != "tied" and choose([False, False, False, True])
    scenario = Scenario(
        windows=(),
        model=model,
        losses=(first, choose(_losses(SECOND, words))) if two else (first,),
        layout=choose([name for name in layouts if not (left and name == "listed lengths")]),
        gate=gate,
        wrapper=choose(["none", "compiled", "compiled, aot"]) if compiled else "none",
        optimizer="sgd" if sparse else choose(OPTIMIZERS[:-1] if model == "complex" else OPTIMIZERS),
        clip=choose(
            ["none"] if sparse else ["none", "norm"] if model == "complex" else ["none", "norm", "value"]
        ),
        clear=choose(["none", "none", "zero", "decay"]),
        nonfinite=choose(["raise", "skip"]),
        schedule=choose([False, True]),
        scaler=scaler,
        undo_step=choose([False, True]),
        given_model=stateful or choose([True, False]),
        late_head=late_head,
        named=choose([True, False]),
        into=two and model != "tied" and not late_head and choose([False, True]),
        left_padding=left,
        seed=choose(SEEDS),
    )
    ways = IN_LOOPS if two or (gate in BY_MICRO_BATCH and choose([True, False])) else tuple(WAYS)
    if gate in BY_MICRO_BATCH:  # which see the gradient with the loss scale, as hooks do in any loop
        scenario = dataclasses.replace(scenario, scaler=False)
        ways = tuple(way for way in ways if way in (*IN_LOOPS, "step_window"))
    windows = tuple(_window(choose, scenario, ways, IN_ONE_PROCESS, 1) for _ in range(choose([1, 2, 3, 4])))
    return _with(scenario, windows)


def spoiled(choose: Choose) -> Scenario:
    """Draw a loop of one process in which no split is exact, and in which this can be seen."""
    scenario = in_one_process(choose)
    clips = scenario.model not in ("sparse", "complex") and choose([False, False, True])
    model = scenario.model if scenario.model not in HIDING else "norm"
    words = model in OF_WORDS
    window = Window(sizes=(tuple(choose(SMALL[1:]) for _ in range(choose([2, 3, 4]))),), way=choose(SEEN_IN))
    layouts = [name for name, layout in LAYOUTS.items() if layout.words in (None, words)]
    layout = scenario.layout if model == scenario.model else choose(layouts)
    losses = [
        name for name in OF_ITEMS if layout != "images" or "counted" in name
    ]  # otherwise, counts are asked for
    return dataclasses.replace(
        scenario,
        windows=(window,),
        spoiled=choose(list(CLIPS if clips else MIXES)),
        model=model,
        losses=(choose(losses),),
        layout=layout,
        gate=choose(["none", "scale", "hook"]),
        optimizer="sgd" if model == "complex" else scenario.optimizer,
        into=False,
        left_padding=False,
        scaler=False,
    )


def over_ranks(choose: Choose, ranks: int) -> Scenario:
    """Draw a loop over ranks."""
    wrapper = choose(
        ["none", "ddp", "ddp, unused", "ddp, views", "fsdp", "fsdp, gathered", "fsdp, resharded"]
    )
    sharded = "fsdp" in wrapper
    model = choose(["norm", "routed", "checkpointed", "attention", "tied", "placed"][: 4 if sharded else 6])
    words = model in OF_WORDS
    two = not sharded and choose([False, False, True])
    # FSDP2 has no second derivatives.
    first = choose([name for name in _losses(WITHOUT_NET, words) if not (sharded and "penalty" in name)])
    sync = choose(["last", "last", "every"] if sharded else ["last"])
    late_head = wrapper == "none" and choose([False, False, True])
    scenario = Scenario(
        windows=(),
        model=model,
        losses=(first, choose(_losses(SECOND, words))) if two else (first,),
        layout=choose(["dict", "nested", "dataclass"]),
        gate=choose(["none", "none", "scale", "reverse", "hook"]),
        wrapper=wrapper,
        optimizer=choose(["momentum", "sgd", "adamw"]),
        clip=choose(["none", "norm", "value"]),
        clear=choose(["none", "none", "zero", "decay"]),
        sync=sync,
        schedule=choose([False, True]),
        late_head=late_head,
        named=choose([True, False]),
        into=two and model != "tied" and not late_head and choose([False, True]),
        seed=choose(SEEDS),
    )
    ways = IN_LOOPS[:3] if two else (*IN_LOOPS[:3], "step_window", "step")
    if not sharded and not two:
        ways = (*ways, "step_window, no memory in forward", "step_window, no memory in backward")
    acts = (
        WITH_DDP
        if "ddp" in wrapper
        else tuple(a for a in WITH_DDP if a != "wrap again" and not sharded) or OVER_RANKS
    )
    windows = tuple(_window(choose, scenario, ways, acts, ranks) for _ in range(choose([2, 3, 4])))
    return _with(scenario, windows)


def _with(scenario: Scenario, windows: tuple[Window, ...]) -> Scenario:
    return dataclasses.replace(scenario, windows=windows)


def _window(
    choose: Choose, scenario: Scenario, ways: Sequence[str], acts: Sequence[str], ranks: int
) -> Window:
    before = choose(acts) if choose([True, True, False]) else "nothing"
    if (before == "poison" and scenario.clear == "decay") or (
        before == "compile" and scenario.wrapper == "none"
    ):
        before = "nothing"
    way = choose(ways)
    within = choose(["nothing"] * 5 + ["evaluate", "frozen"])
    not_frozen = way == "resumed" or scenario.model in ("tied", "reentrant") or "fsdp" in scenario.wrapper
    if before == "own backward" and "ddp, unused" in scenario.wrapper:
        before = "nothing"  # torch's reducer raises there
    return Window(
        sizes=_sizes(choose, scenario, ranks),
        way=way,
        before=before,
        within="nothing" if within == "frozen" and not_frozen else within,
    )


def _sizes(choose: Choose, scenario: Scenario, ranks: int) -> Sizes:
    """Samples for each micro-batch of each rank; empty ones where the model can take them."""
    # A rank that uses no part of what `fully_shard` gathers lets the others wait: torch's own rule.
    takes_empty = scenario.model not in (
        "recurrent",
        "reentrant",
        "routed" if "fsdp" in scenario.wrapper else "",
    )
    sizes = (*SMALL, 0) if takes_empty else SMALL
    dealt = [[choose(sizes) for _ in range(choose([1, 2, 3, 4]))] for _ in range(ranks)]
    if ranks > 1 and "fsdp" not in scenario.wrapper and choose([False] * 5 + [True]):
        dealt[choose(range(ranks))] = []
    if not any(map(any, dealt)):
        dealt[0] = [3]
    return tuple(map(tuple, dealt))
