"""Wrong calls of gates, of what freezes and trains parts, and of what asserts flow."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, SGD, Adam

import gradgate as gg

X = torch.ones(2, requires_grad=True)
PAIR = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def linear() -> nn.Linear:
    return nn.Linear(4, 3)


def leave_once_more() -> None:
    with gg.frozen(linear()) as handle:
        pass
    with handle:
        pass


def freeze_during_an_update() -> None:
    model = linear()
    with gg.Accumulator(SGD(model.parameters(), lr=1.0), model=model).update():
        gg.frozen(model)


def rows_under_lbfgs() -> None:
    model = linear()
    optimizer = LBFGS(model.parameters())
    with gg.train_rows(model, [1]):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step(lambda: 0.0)


def rows_with_state_of_others() -> None:
    model = linear()
    optimizer = Adam([model.weight])
    with gg.train_rows(model, [1]):
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        saved = optimizer.state_dict()
    gg.train_rows(model, [2])
    optimizer.load_state_dict(saved)
    optimizer.step()


def rows_twice() -> None:
    model = linear()
    with gg.train_rows(model, [1]):
        gg.train_rows(model, [2])


def sharded() -> Tensor:
    parameter: Any = nn.Parameter(torch.ones(2))
    parameter.to_local = lambda: parameter
    return parameter  # type: ignore[no-any-return]


def holding(parameter: Any) -> nn.Module:
    module = nn.Module()
    module.register_parameter("weight", parameter)
    return module


def tied_twice() -> None:
    model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    model["b"].weight = model["a"].weight
    gg.param_groups(model, {"a": 0.1, "b": 0.5}, lr=0.1)


def scaled_and_loaded_anew() -> None:
    model = linear()
    with gg.scaled(model, factor=0.1):
        model.load_state_dict(model.state_dict(), assign=True)
        SGD(model.parameters(), lr=0.1).step()


def middle_detached() -> Tensor:
    return PAIR[1](PAIR[0](torch.ones(1, 2)).detach()).sum()  # type: ignore[no-any-return]


CASES: dict[str, Any] = {
    "a factor that is a word": lambda: gg.scale_gradient(X, "fast"),  # type: ignore[arg-type]
    "a factor of another shape": lambda: gg.scale_gradient(X, torch.ones(3)),
    "a strength of another shape": lambda: gg.reverse_gradient(X, strength=torch.ones(3)),
    "a mask of another shape": lambda: gg.mask_gradient(X, torch.ones(3)),
    "two limits of a clip": lambda: gg.clip_gradient(X, max_norm=1.0, max_value=2.0),
    "a complex value clipped": lambda: gg.clip_gradient(X * 1j, max_value=2.0),
    "a gated module": lambda: gg.stop_gradient(linear()),
    "a gated iterator": lambda: gg.stop_gradient(map(torch.exp, [X])),
    "a gate traced symbolically": lambda: torch.fx.symbolic_trace(gg.stop_gradient),
    "a gated set": lambda: gg.scale_gradient({X}, 0.5),
    "a gated distribution": lambda: gg.stop_gradient(torch.distributions.Normal(X, 1.0)),
    "nothing frozen": gg.frozen,
    "an entered handle": leave_once_more,
    "unfreezing others": lambda: gg.frozen(linear()).unfreeze(linear()),
    "freezing during an update": freeze_during_an_update,
    "a scaled tensor": lambda: gg.scaled(X, factor=0.1),  # type: ignore[arg-type]
    "scaled without parameters": lambda: gg.scaled(nn.ReLU(), factor=0.1),
    "a scaled shard": lambda: gg.scaled(holding(sharded()), factor=0.1),
    "scaled and loaded anew": scaled_and_loaded_anew,
    "rows under LBFGS": rows_under_lbfgs,
    "rows with the state of others": rows_with_state_of_others,
    "rows chosen twice": rows_twice,
    "rows of an embedding with max_norm": lambda: gg.train_rows(nn.Embedding(4, 2, max_norm=1.0), [1]),
    "rows of a number": lambda: gg.train_rows(nn.Parameter(torch.tensor(1.0)), [0]),
    "rows of a computed tensor": lambda: gg.train_rows(X * 2, [0]),
    "rows of integers": lambda: gg.train_rows(torch.ones(3, dtype=torch.long), [0]),
    "rows of a shard": lambda: gg.train_rows(sharded(), [0]),
    "rows that are fractions": lambda: gg.train_rows(linear(), [0.5]),  # type: ignore[list-item]
    "no rows": lambda: gg.train_rows(linear(), []),
    "rows out of range": lambda: gg.train_rows(linear(), [2, 3, 4, 5, 6]),
    "rows given twice": lambda: gg.train_rows(linear(), [1, 1]),
    "rows of a module without a weight": lambda: gg.train_rows(nn.ReLU(), [0]),
    "no decay without decay": lambda: gg.param_groups(PAIR, lr=0.1, no_decay=["0"]),
    "groups without parameters": lambda: gg.param_groups(nn.ReLU(), lr=0.1),
    "a group's factor of 0": lambda: gg.param_groups(PAIR, {"0": 0.0}, lr=0.1),
    "groups at a rate of 0": lambda: gg.param_groups(PAIR, lr=0.0),
    "groups with a negative decay": lambda: gg.param_groups(PAIR, lr=0.1, weight_decay=-1.0),
    "a group of nothing": lambda: gg.param_groups(PAIR, {"head": 0.1}, lr=0.1),
    "a tied parameter in two groups": tied_twice,
    "a group within a later one": lambda: gg.param_groups(PAIR, {"0": 0.1, "*": 0.5}, lr=0.1),
    "flow into nothing": lambda: gg.expect_flow(middle_detached()),
    "flow into and not into": lambda: gg.expect_flow(middle_detached(), into=[PAIR], not_into=[PAIR[0]]),
    "flow that leaks": lambda: gg.expect_flow(X.sum(), not_into=[X]),
    "flow that is missing": lambda: gg.expect_flow(middle_detached(), into=[PAIR]),
    "flow into no parameters": lambda: gg.expect_flow(middle_detached(), into=[nn.ReLU()]),
    "flow into a word": lambda: gg.expect_flow(middle_detached(), into=["G"]),  # type: ignore[list-item]
    "flow into a computed tensor": lambda: gg.expect_flow(middle_detached(), into=[X * 2]),
    "flow in a tensor": lambda: gg.flow(X.sum(), X),  # type: ignore[arg-type]
    "flow in a ReLU": lambda: gg.flow(X.sum(), nn.ReLU()),
    "flow of a number": lambda: gg.flow(1.0, PAIR),  # type: ignore[arg-type]
    "flow of a function without a loss": lambda: gg.flow(lambda: None, PAIR),
    "flow of a vector": lambda: gg.flow(X * 2, PAIR),
}
