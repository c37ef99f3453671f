"""Forward passes of frozen modules: their buffers stay as they are, wherever and however they run."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gradgate as gg
from tests.laws.modules import Averaging, Counter, Counting, values
from tests.tensors import on_device, randn

# -- buffers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_forward_pass_that_raises_leaves_no_trace(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    counter = Counter(fail)
    own = counter.calls
    handle = gg.frozen(counter)
    with pytest.raises(error):
        counter(torch.ones(1))
    if error is KeyboardInterrupt:  # torch runs no hook after it: the buffer comes back with the module
        handle.unfreeze()
    assert counter.calls is own
    assert own == 0


def test_a_module_that_calls_itself_leaves_no_trace() -> None:
    class Nested(Counter):
        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            self.calls += 1
            x = self(x, depth - 1) if depth else x
            self.calls += 1
            return x * self.calls

    nested = Nested()
    with gg.frozen(nested):
        nested(torch.ones(()))
        assert nested.calls == 0


def test_a_buffer_that_a_pass_adds_is_gone_after_it() -> None:
    class Remembering(Counter):
        def forward(self, x: Tensor) -> Tensor:
            self.register_buffer("last", x)
            return super().forward(x)

    remembering = Remembering()
    with gg.frozen(remembering):
        remembering(torch.ones(1))
        assert list(remembering._buffers) == ["calls"]


def test_a_replica_leaves_the_buffers_of_the_original_in_their_place() -> None:
    """DataParallel runs replicas in threads; they share the hooks, and have buffers of their own."""
    counter = Counter(lambda: found.append(counter.calls))
    own, found = counter.calls, []
    with gg.frozen(counter):
        replica = counter._replicate_for_data_parallel()
        replica._buffers["calls"] = own.clone()
        replica(torch.ones(1))
    assert found[0] is own


def test_a_cache_that_has_grown_stays() -> None:
    """A non-persistent buffer that a pass replaces; the module remembers the new size elsewhere."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.size = 0
            self.register_buffer("cache", torch.zeros(0), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            if len(x) > self.size:
                self.size = len(x)
                self.register_buffer("cache", torch.arange(1.0, 1.0 + self.size), persistent=False)
            return x * self.cache[: len(x)]

    positions = Positions()
    with gg.frozen(positions):
        assert [positions(torch.ones(n)).tolist() for n in (3, 2)] == [[1, 2, 3], [1, 2]]


def test_what_is_loaded_or_converted_meanwhile_stays() -> None:
    whole, trained = (on_device(nn.Sequential(nn.BatchNorm1d(4), Averaging())) for _ in range(2))
    for one in (whole, trained):
        one(randn(8, 4)).sum().backward()
    handle = gg.frozen(whole)
    whole.load_state_dict(trained.state_dict())
    whole.to(torch.float32)
    before = values(whole)
    whole(torch.randn(8, 4))
    assert values(whole) == before == values(trained.to(torch.float32))
    handle.unfreeze()
    assert {one.grad.dtype for one in whole.parameters()} == {torch.float32}


# -- together with the rest of torch ----------------------------------------------------------------


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpoint_sees_the_same_buffers_when_it_runs_again(reentrant: bool) -> None:
    whole, x = nn.Sequential(Counter(), Counting()), torch.ones(3, 4, requires_grad=True)
    with gg.frozen(whole):
        before = values(whole)
        checkpoint(whole, x, use_reentrant=reentrant).sum().backward()
        assert values(whole) == before  # not reentrant, it is left by an exception in the middle
    (expected,) = torch.autograd.grad(x.sin().cos().sum(), x)
    assert torch.equal(x.grad, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_compiles_into_one_graph() -> None:
    """Frozen after it was compiled, in training mode anew before each pass, and given back."""
    whole = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.BatchNorm1d(4), Counter(), nn.Linear(4, 4)))
    plain, x = copy.deepcopy(whole), torch.randn(8, 4)
    compiled = torch.compile(whole, backend="eager", fullgraph=True)
    for one in (compiled, plain):
        one(x).sum().backward()
    for one, part in ((compiled, whole[1]), (plain, plain[1])):
        with gg.frozen(part):
            before = values(part)
            for _ in range(2):
                one.train().zero_grad()
                one(x).sum().backward()
            assert values(part) == before
        one(x).sum().backward()
    torch.testing.assert_close(list(whole.buffers()), list(plain.buffers()))
    torch.testing.assert_close(
        [one.grad for one in whole.parameters()], [one.grad for one in plain.parameters()]
    )
