"""Calls that are rare and right: the watcher records them, and none of them hides a later one."""

import threading
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

# private: names that are broken on purpose, so that the watcher fails while the script computes
from gradgate.checker.recording import Watcher, _node_lines
from gradgate.events import Backward, Clipped, ModeSet, Reduced, Stepped


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_collective_of_a_sparse_gradient_is_recorded(alone: None, watcher: Watcher) -> None:
    embedding = nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1, 3])).sum().backward()
    assert embedding.weight.grad is not None
    dist.all_reduce(embedding.weight.grad)
    log = watcher.log()
    [event] = [event for event in log.events if isinstance(event, Reduced)]
    assert event.parameters == frozenset(log.parameters) != frozenset()


@pytest.mark.parametrize("anomaly", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_thread_that_runs_no_python_code_makes_nodes(
    alone: None, watcher: Watcher, training: bool, anomaly: bool
) -> None:
    model = nn.Linear(2, 1).train(training)
    for _ in range(8):  # the watcher looks for collected graphs in an evaluation
        outputs = model(torch.ones(3, 2))
        gathered = [torch.empty(3, 1)]
        with torch.autograd.set_detect_anomaly(anomaly):
            dist.all_gather(gathered, outputs)  # gloo's thread copies outputs, which require a gradient
        assert torch.equal(gathered[0], outputs)


def test_the_reduction_of_a_collective_is_read_at_any_position(alone: None, watcher: Watcher) -> None:
    dist.all_reduce(torch.ones(2), dist.ReduceOp.MAX)
    dist.reduce(torch.ones(2), 0, dist.ReduceOp.MIN)
    dist.reduce(torch.ones(2), dst=0, op=dist.ReduceOp.PRODUCT)
    dist.reduce(torch.ones(2), 0)
    ops = [event.op for event in watcher.log().events if isinstance(event, Reduced)]
    assert ops == ["all_reduce:max", "reduce:min", "reduce:product", "reduce:sum"]


def test_a_mode_that_one_thread_sets_does_not_hide_that_of_another(watcher: Watcher) -> None:
    inside, go_on = threading.Event(), threading.Event()

    class Slow(nn.Linear):
        def train(self, mode: bool = True) -> nn.Module:
            inside.set()
            go_on.wait(20)
            return super().train(mode)

    slow, other = nn.Sequential(Slow(2, 2)), nn.Linear(2, 2)
    thread = threading.Thread(target=slow.train)
    thread.start()
    inside.wait(20)
    other.eval()
    go_on.set()
    thread.join()
    modes = {event.training for event in watcher.log().events if isinstance(event, ModeSet)}
    assert modes == {False, True}


def test_a_plain_leaf_counts_in_each_call_that_reaches_it(watcher: Watcher) -> None:
    leaf = torch.ones(3, requires_grad=True)
    for _ in range(4):
        leaf.square().sum().backward()
    assert [event.others for event in watcher.log().events if isinstance(event, Backward)] == [1] * 4


def test_a_failure_while_a_line_is_stored_does_not_reach_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_node_lines, "_stacks", None)  # None has no get: AttributeError
    watcher = Watcher()
    watcher.start()
    nn.Linear(2, 1)(torch.ones(3, 2)).sum().backward()
    watcher.stop()
    assert any("AttributeError" in failure for failure in watcher.log().failures)


def test_a_clip_may_have_no_limit(watcher: Watcher) -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.sum().backward()
    for limit in (float("inf"), 1.0, float("nan")):
        nn.utils.clip_grad_norm_([weight], limit)
    log = watcher.log()
    assert [event.limit for event in log.events if isinstance(event, Clipped)] == [None, 1.0, None]


def test_parameters_made_in_each_forward_pass_leave_close_looks_for_a_new_optimizer(watcher: Watcher) -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for step in range(120):
        if step == 100:
            optimizer = torch.optim.SGD([weight], lr=0.01)
        (weight * nn.Parameter(torch.ones(2))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    seen = [event.seen for event in watcher.log().events if isinstance(event, Stepped)]
    assert not seen[99]
    assert all(seen[100:107])
