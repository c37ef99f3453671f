"""The graph of values: where a value leaves autograd's graph, and from which parameters it came."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradgate.checker.analysis import Run
from gradgate.checker.recording import Watcher
from gradgate.checker.rules import check
from gradgate.events import Backward


def trained(loss_of: Callable[[Tensor, Tensor], Tensor], steps: int = 4) -> tuple[Watcher, Tensor]:
    """Train two layers with a loss of their outputs; return the watcher and the last weights."""
    torch.manual_seed(0)
    watcher = Watcher(strict=True)
    watcher.start()
    try:
        first, second = nn.Linear(3, 2), nn.Linear(3, 2)
        optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
        for _ in range(steps):
            x = torch.randn(5, 3)
            optimizer.zero_grad()
            loss_of(first(x), second(x)).backward()
            optimizer.step()
    finally:
        watcher.stop()
    return watcher, torch.cat([first.weight, second.weight]).detach()


def whole(a: Tensor, b: Tensor) -> Tensor:
    return a.square().mean() + b.square().mean()


CUTS = {
    "detach": lambda a, b: a.square().mean() + b.square().mean().detach(),
    "data": lambda a, b: a.square().mean() + b.data.square().mean(),
    "item": lambda a, b: a.square().mean() + b.square().mean().item(),
    "multiple": lambda a, b: a.square().mean() + 0.3 * b.square().mean().item(),
    "new leaf": lambda a, b: a.square().mean() + b.detach().requires_grad_().square().mean(),
}


@pytest.mark.parametrize("cut", [name for name in CUTS if name != "new leaf"])
def test_a_value_is_followed_after_it_left_the_graph(cut: str) -> None:
    log = trained(CUTS[cut])[0].log()
    values, loss = log.values, max(event.root for event in log.events if isinstance(event, Backward))
    below, todo = set(), [loss]
    while todo:
        number = todo.pop()
        if number not in below:
            below.add(number)
            todo += values.nodes[number].parents
    leaves = {values.leaves[values.nodes[number].leaf] for number in below if values.nodes[number].leaf >= 0}
    assert sorted(log.parameters[number].shape for number in leaves) == [(2,), (2,), (2, 3), (2, 3)]


@pytest.mark.parametrize("cut", CUTS)
def test_a_layer_behind_a_cut_is_a_broken_graph(cut: str) -> None:
    [finding] = [each for each in check(trained(CUTS[cut])[0].log(), strict=True) if each.severity != "info"]
    assert (finding.code, finding.file) == ("GG402", __file__)


def surrogate(a: Tensor, b: Tensor) -> Tensor:
    loss = whole(a, b)
    return loss + (b.abs().mean() - loss).detach()


def log_sum_exp(a: Tensor, b: Tensor) -> Tensor:
    most = a.detach().max()
    return whole(a, b) + (a - most).exp().sum().log() + most


RIGHT = {
    "whole": whole,
    "weight": lambda a, b: whole(a, b) / (1 + b.square().mean().item()),
    "factor": lambda a, b: whole(a, b) + (a.square() * b.detach().abs()).mean(),
    "straight through": lambda a, b: whole(a + (a.sign() - a).detach(), b),
    "surrogate": surrogate,
    "shift": log_sum_exp,
}


@pytest.mark.parametrize("loss_of", RIGHT.values(), ids=list(RIGHT))
def test_a_cut_on_purpose_is_no_broken_graph(loss_of: Callable[[Tensor, Tensor], Tensor]) -> None:
    assert [each for each in check(trained(loss_of)[0].log(), strict=True) if each.code == "GG402"] == []


def test_a_term_that_is_constant_in_a_warm_up_only_is_no_broken_graph() -> None:
    calls = []

    def warm(a: Tensor, b: Tensor) -> Tensor:
        calls.append(1)
        term = b.square().mean()
        return a.square().mean() + (term.detach() if len(calls) < 3 else term)

    assert [each for each in check(trained(warm)[0].log(), strict=True) if each.code == "GG402"] == []


def test_no_value_is_recorded_after_the_first_steps() -> None:
    twelve, more = (len(trained(whole, steps)[0].log().values.nodes) for steps in (12, 20))
    assert twelve == more > 0


def test_watched_training_has_the_same_weights() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    for _ in range(4):
        x = torch.randn(5, 3)
        optimizer.zero_grad()
        whole(first(x), second(x)).backward()
        optimizer.step()
    assert torch.equal(torch.cat([first.weight, second.weight]), trained(whole)[1])


def test_an_operation_that_the_watcher_wraps_is_recorded_once() -> None:
    watcher = Watcher(strict=True)
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    watcher.start()
    weight.sum().backward()
    weight.grad.div_(4)  # type: ignore[union-attr]
    optimizer.step()
    watcher.stop()
    run = Run(watcher.log())
    assert [written.factor for written in run.written("gradient")] == [0.25]


def test_recording_ends_where_torch_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model: model)
    watcher = Watcher(strict=True)
    watcher.start()
    torch.compile(nn.Linear(2, 1))
    nn.Linear(2, 1)(torch.ones(2)).sum().backward()
    watcher.stop()
    assert "linear" not in [node.op for node in watcher.log().values.nodes]


def test_a_mode_of_the_script_stays_on_the_stack() -> None:
    watcher = Watcher(strict=True)
    watcher.start()
    with torch.device("meta"):
        watcher.stop()
        assert torch.zeros(1).is_meta
    assert not torch.zeros(1).is_meta
