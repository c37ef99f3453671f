"""The graph of values: where a value leaves autograd's graph, and from which parameters it came."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from gradgate.checker.analysis import Run

# private: what the shadow of values knows is the law of GG402 and GG407
from gradgate.checker.analysis._values import ValueFlow, flow
from gradgate.checker.recording import Watcher
from gradgate.checker.rules import check


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


def shadow(watcher: Watcher) -> ValueFlow:
    return flow(Run(watcher.log()))


@pytest.mark.parametrize("cut", [name for name in CUTS if name != "new leaf"])
def test_a_value_is_followed_after_it_left_the_graph(cut: str) -> None:
    values = shadow(trained(CUTS[cut])[0])
    loss = values.losses[-1]
    lost = values.cut[loss.event.root] & ~values.live[loss.event.root]
    shapes = [values.run.parameters[number].shape for number in sorted(values.ids(lost))]
    assert shapes == [(2, 3), (2,)]  # those of the second layer
    assert values.cut[loss.event.root] & values.live[loss.event.root] == 0


@pytest.mark.parametrize("cut", CUTS)
def test_a_layer_behind_a_cut_is_a_broken_graph(cut: str) -> None:
    [finding] = [each for each in check(trained(CUTS[cut])[0].log(), strict=True) if each.severity != "info"]
    assert (finding.code, finding.file) == ("GG402", __file__)


def test_a_loss_with_its_whole_graph_has_no_finding() -> None:
    assert check(trained(whole)[0].log(), strict=True) == []


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
