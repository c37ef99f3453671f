"""Parameter groups: each parameter once, none forgotten, at the rate and decay that its name says."""

import fnmatch
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gradgate.errors import OptionError
from gradgate.gates import param_groups


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((2, 4))) for _ in range(2))
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight  # tied
        self.scale = nn.Parameter(torch.ones(3, 3))


def by_name(model: nn.Module, groups: list[dict[str, Any]], key: str) -> dict[str, Any]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(one)]: group[key] for group in groups for one in group["params"]}


PATTERNS = ["embedding", "blocks", "blocks.0", "blocks.*.0", "*.bias", "scale", "head.weight", "blocks.1.1"]


@given(
    factors=st.dictionaries(st.sampled_from(PATTERNS), st.floats(0.1, 2.0), max_size=4),
    decay=st.none() | st.just(0.1),
)
def test_every_parameter_is_in_one_group_at_the_rate_of_the_last_pattern(
    factors: dict[str, float], decay: float | None
) -> None:
    model = Model()
    if "embedding" in factors and "head.weight" in factors:
        del factors["embedding"]  # one parameter
    try:
        groups = param_groups(model, factors, lr=0.01, weight_decay=decay)
    except OptionError as error:
        assert "the last match counts" in str(error)  # noqa: PT017
        return
    assert sorted(id(one) for group in groups for one in group["params"]) == sorted(
        map(id, model.parameters())
    )
    assert len({group["name"] for group in groups}) == len(groups)
    for name, rate in by_name(model, groups, "lr").items():
        names = [name, "head.weight"] if name == "embedding.weight" else [name]
        found = [
            factor
            for pattern, factor in factors.items()
            if any(
                one == pattern or fnmatch.fnmatch(one, f"{pattern}.*") or fnmatch.fnmatch(one, pattern)
                for one in names
            )
        ]
        assert rate == pytest.approx(0.01 * (found[-1] if found else 1.0))


def test_biases_norms_and_what_is_named_are_not_decayed() -> None:
    model = Model()
    groups = param_groups(model, lr=0.01, weight_decay=0.1, no_decay=["scale"])
    assert by_name(model, groups, "weight_decay") == {
        "embedding.weight": 0.1,
        "blocks.0.0.weight": 0.1, "blocks.0.0.bias": 0.0, "blocks.0.1.weight": 0.0, "blocks.0.1.bias": 0.0,
        "blocks.1.0.weight": 0.1, "blocks.1.0.bias": 0.0, "blocks.1.1.weight": 0.0, "blocks.1.1.bias": 0.0,
        "scale": 0.0,
    }  # fmt: skip


def test_without_weight_decay_the_optimizers_own_goes_for_all() -> None:
    optimizer = torch.optim.AdamW(param_groups(Model(), {"blocks": 0.1}, lr=0.01), weight_decay=0.3)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.3]
