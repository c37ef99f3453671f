"""What a loss reaches, and where and by what gradient is stopped on its way."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from gradgate.gates import Stop, flow

ONES = torch.ones(4, 3)


class Net(nn.Module):
    """A trunk and a head; what lies between them is given."""

    def __init__(self, between: Callable[[Tensor], Any] = lambda x: x) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Linear(3, 3)
        self.head = nn.Linear(3, 1)
        self.between = between

    def loss(self) -> Tensor:
        return self.head(self.between(self.trunk(ONES))).square().mean()


def under_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x * 2


def under_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        y = x * 2
    return y.clone()


def overwritten(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    y[:] = x.detach()
    return y


def line_of(function: Callable[..., Any], text: str) -> int:
    lines, start = inspect.getsourcelines(function)
    return start + next(number for number, line in enumerate(lines) if text in line)


DETACHED, DATA = (lambda x: x.detach()), (lambda x: x.data)
ARGMAX = lambda x: x.argmax(1, keepdim=True).float().expand(4, 3)  # noqa: E731
VALUE = lambda x: torch.tensor(x.tolist())  # noqa: E731
NEW = lambda x: torch.tensor(x.sum().item()).expand(4, 3)  # noqa: E731

STOPS = {
    "detach": (DETACHED, "detach", "detach", "x.detach()"),
    "data": (DATA, "detach", "data", "x.data"),
    "no_grad": (under_no_grad, "no_grad", "mul", "x * 2"),
    "inference_mode": (under_inference_mode, "inference_mode", "mul", "x * 2"),
    "argmax": (ARGMAX, "not differentiable", "argmax", "argmax"),
    "tolist": (VALUE, "value taken out", "tolist", "tolist"),
    "item": (NEW, "value taken out", "item", "item"),
    "detach, written into another": (overwritten, "detach", "detach", "x.detach()"),
}


@pytest.mark.parametrize("name", STOPS)
def test_what_stops_it_is_named_with_its_line(name: str) -> None:
    between, why, op, text = STOPS[name]
    model = Net(between)
    found = flow(model.loss, model)
    assert found.reached == ["head.weight", "head.bias"]
    for parameter in ("trunk.weight", "trunk.bias"):
        (stop,) = found[parameter].stops
        assert (stop.why, stop.op) == (why, op)
        assert stop.frame is not None
        assert Path(stop.frame.file) == Path(__file__)
        assert stop.frame.line == line_of(between, text)


def test_nothing_is_run_backwards_and_nothing_changes() -> None:
    model = Net()
    before = [one.detach().clone() for one in model.parameters()]
    loss = model.loss()
    flow(loss, model)
    flow(model.loss, model)
    assert all(one.grad is None for one in model.parameters())
    assert all(torch.equal(one, was) for one, was in zip(model.parameters(), before, strict=True))
    loss.backward()  # the graph is still there
    assert model.trunk.weight.grad is not None


def test_what_is_reached_is_what_receives_a_gradient() -> None:
    """The slow truth beside the walk: run backward and look."""
    model = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    for number, parameter in enumerate(model.parameters()):
        parameter.requires_grad_(number % 3 > 0)

    def loss() -> Tensor:
        return model(torch.ones(2, 3, 4)).square().mean()

    found = flow(loss, model)
    loss().backward()
    assert found.reached == [name for name, one in model.named_parameters() if one.grad is not None]
    assert {stop.why for name in found.stopped for stop in found[name].stops} == {"requires_grad"}


def by_hand(model: nn.Module, loss: Tensor) -> dict[str, int]:
    """Count paths by walking every one of them."""

    def walk(node: Any) -> None:
        if hasattr(node, "variable"):
            counts[id(node.variable)] = counts.get(id(node.variable), 0) + 1
        for following, _ in node.next_functions:
            if following is not None:
                walk(following)

    counts: dict[int, int] = {}
    walk(loss.grad_fn)
    return {name: counts.get(id(one), 0) for name, one in model.named_parameters()}


def test_paths_are_counted() -> None:
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(4))

    def loss() -> Tensor:
        x = ONES
        for layer in model:
            x = x + layer(x).tanh() + layer(x)
        return x.sum()

    found = flow(loss, model)
    assert {one.name: one.paths for one in found.parameters} == by_hand(model, loss())
    # A layer is used twice, and each later one has three ways around and through it.
    assert [found[f"{number}.bias"].paths for number in range(4)] == [2 * 3**3, 2 * 3**2, 2 * 3, 2]


def test_of_cuts_in_a_row_all_are_named_the_one_next_to_the_loss_first() -> None:
    model = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))

    def loss() -> Tensor:
        x = under_no_grad(model[0](ONES))
        return model[2](model[1](x).detach()).sum()

    found = flow(loss, model)
    assert [stop.why for stop in found["0.weight"].stops] == ["detach", "no_grad"]
    assert [stop.why for stop in found["1.weight"].stops] == ["detach"]


def test_what_is_written_into_a_view_is_followed() -> None:
    model = Net()

    def loss() -> Tensor:
        cache = torch.zeros(4, 2, 3)
        with torch.no_grad():
            cache[:, 0].copy_(model.trunk(ONES))
        return model.head(cache[:, 0]).sum()

    (stop,) = flow(loss, model)["trunk.weight"].stops
    assert (stop.why, stop.op) == ("no_grad", "linear")


def test_a_roll_out_of_many_cuts_is_looked_through_at_once() -> None:
    """Each step's action is a cut that hangs on all those before: walking them anew for each takes for ever."""
    model = nn.Linear(3, 3)
    walked = 0

    def loss() -> Tensor:
        nonlocal walked
        state, losses = ONES, []
        for _ in range(100):
            scores = model(state)
            losses.append(scores.logsumexp(1).mean())
            state = state + 0.1 * scores.detach()
            walked += 1
        return torch.stack(losses).sum()

    reach = flow(loss, model)["weight"]
    assert walked == 100
    assert reach.paths == 100
    assert len(reach.stops) == 1


def test_what_the_loss_does_not_need_stops_nothing() -> None:
    model = Net()

    def loss() -> Tensor:
        code = model.trunk(ONES)
        print(code.detach().mean().item(), code.argmax())  # for logging
        return model.head(code).sum()

    assert all(one.reached and not one.stops for one in flow(loss, model).parameters)


@pytest.mark.parametrize(("reentrant", "stops"), [(False, ()), (True, (Stop("reentrant checkpoint"),))])
def test_checkpoints_are_seen_through_or_named(reentrant: bool, stops: tuple[Stop, ...]) -> None:
    model = Net()

    def loss() -> Tensor:
        x = ONES.clone().requires_grad_()
        return model.head(checkpoint(model.trunk, x, use_reentrant=reentrant)).sum()  # type: ignore[no-any-return]

    found = flow(loss, model)
    assert found["trunk.weight"].stops == stops
    assert found["trunk.weight"].reached is not reentrant


def test_a_compiled_model_is_looked_into() -> None:
    model = Net()
    compiled = torch.compile(model.trunk, backend="eager")
    assert flow(lambda: model.head(compiled(ONES)).sum(), model).stopped == []


def test_gradients_that_nobody_uses_are_named() -> None:
    model = Net()
    optimizer = torch.optim.SGD(
        [{"params": [model.trunk.weight], "lr": 0.0}, {"params": [model.head.weight]}], lr=1.0
    )
    found = flow(model.loss, model, optimizer=[optimizer])
    assert found["trunk.weight"].stops == (Stop("lr=0"),)
    assert found["trunk.bias"].stops == (Stop("not in the optimizer"),)
    assert found["head.weight"].stops == ()


class Whole(Net):
    def __init__(self) -> None:
        super().__init__(DETACHED)
        self.norm = nn.BatchNorm1d(3)
        self.spare = nn.Linear(2, 2)

    def loss(self) -> Tensor:
        return self.head(self.norm(self.between(self.trunk(ONES)))).square().mean()


def test_the_tree_says_it_in_one_line_where_all_parts_are_alike() -> None:
    model = Whole()
    model.head.bias.requires_grad_(False)
    optimizer = torch.optim.SGD([*model.head.parameters(), *model.trunk.parameters()])
    line = line_of(DETACHED, "x.detach()")
    assert str(flow(model.loss, model, optimizer=optimizer)).splitlines() == [
        "Whole         3 of 8   tensors",
        f"├─ trunk      0 of 2   detach at test_flow.py:{line}",
        "├─ head       1 of 2",
        "│  ├─ weight  reached  1 path",
        "│  └─ bias    stopped  requires_grad",
        "├─ norm       2 of 2   1 path, but not in the optimizer",
        "└─ spare      0 of 2   not used, not in the optimizer",
    ]


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/gates.md").read_text("utf-8")
    section = page.split("## A model with all of them")[1]
    code, shown = re.findall(r"```(?:python|text)\n(.*?)```", section, re.DOTALL)[:2]
    exec(compile(code, "train.py", "exec"), {})
    assert capsys.readouterr().out == shown


def test_a_deep_model_takes_no_deep_stack() -> None:
    model = nn.Linear(1, 1)

    def loss() -> Tensor:
        x = model(torch.ones(1, 1))
        for _ in range(1500):
            x = x + x
        return x.sum()

    reach = flow(loss, model)["weight"]
    assert reach.paths == 2**1500
    assert "countless paths" in str(flow(loss, model))
