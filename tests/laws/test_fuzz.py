"""The promise, on drawn training loops: the whole batch's update, or an error before anything is stepped."""

import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.laws.fuzz.draw import in_one_process, over_ranks, spoiled
from tests.laws.fuzz.ranks import verdicts
from tests.laws.fuzz.scenario import Scenario, Window
from tests.laws.fuzz.verdict import judge, silent, train
from tests.laws.fuzz.ways import WRONG, WRONG_OVER_RANKS

# A block that is frozen has nothing to recompute for.
pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),
    pytest.mark.filterwarnings("ignore:backward. the graph holds gg.clip_gradient"),
]

EXAMPLES = 40 if os.environ.get("HYPOTHESIS_PROFILE", "suite") == "suite" else settings().max_examples
DRAWN = [(2, range(5)), (2, range(5, 9)), (3, range(100, 102))]  # ranks, and seeds of scenarios over so many


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    return in_one_process(lambda options: draw(st.sampled_from(options)))


@settings(max_examples=EXAMPLES)
@given(scenario=scenarios())
def test_every_update_is_the_whole_batchs_or_refused_before_a_step(scenario: Scenario) -> None:
    wrong = judge(scenario, [train(scenario)])
    assert not wrong, f"{wrong}\n{scenario!r}"


@st.composite
def spoiled_scenarios(draw: st.DrawFn) -> Scenario:
    return spoiled(lambda options: draw(st.sampled_from(options)))


@settings(max_examples=EXAMPLES)
@given(scenario=spoiled_scenarios())
def test_what_no_split_makes_exact_is_told(scenario: Scenario) -> None:
    wrong = silent(scenario)
    assert not wrong, f"{wrong}\n{scenario!r}"


def test_silence_would_be_noticed() -> None:
    assert "nobody is told" in silent(PLAIN)


def test_so_is_that_of_a_compiled_net() -> None:
    window = Window(sizes=((3, 5, 1),), before="evaluate")
    scenario = Scenario(windows=(window, window), wrapper="compiled", clip="norm")
    assert judge(scenario, [train(scenario)]) == ""


PLAIN = Scenario(
    windows=(Window(sizes=((3, 5, 1),)), Window(sizes=((4, 2),))), losses=("cross entropy, counted",)
)


@pytest.mark.parametrize("way", WRONG)
def test_the_verdict_rejects(way: str) -> None:
    assert judge(PLAIN, [train(PLAIN)]) == ""
    wrong = judge(PLAIN, [train(PLAIN, way=WRONG[way])])
    assert ("refused" if "refused" in way else "off by") in wrong


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "seeds"), DRAWN, ids=str)
def test_every_update_over_ranks_is_the_whole_batchs_too(ranks: int, seeds: range) -> None:
    runs = [(over_ranks(random.Random(seed).choice, ranks), "") for seed in seeds]
    if 0 in seeds:
        window = Window(sizes=((3, 5), (4,)))
        wrapped = Scenario(windows=(window, window), losses=("cross entropy, counted",), wrapper="fsdp")
        runs += [(wrapped, way) for way in WRONG_OVER_RANKS]
    for (scenario, way), (verdict, _) in zip(runs, verdicts(runs), strict=True):
        assert ("off by" in verdict) if way else not verdict, f"{way}: {verdict}\n{scenario!r}"
