"""A loss goes into what it is told to, and nowhere else."""

import torch
from torch import Tensor, nn

import gradgate as gg
from tests.reference import assert_same
from tests.tensors import on_device, randn


class Twoheaded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(3, 3)
        self.left = nn.Linear(3, 1)
        self.right = nn.Linear(3, 1)

    def losses(self, x: Tensor) -> tuple[Tensor, Tensor]:
        code = self.trunk(x).tanh()
        return self.left(code).square().mean(), self.right(code).square().mean()


def two_heads() -> tuple[Twoheaded, gg.Accumulator]:
    torch.manual_seed(0)
    model = on_device(Twoheaded())
    return model, gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1.0))


def test_each_loss_goes_into_what_it_names() -> None:
    model, accumulator = two_heads()
    batch = randn(8, 3)
    probe, loss = model.losses(batch)
    expected = [
        *torch.autograd.grad(loss, model.trunk.parameters(), retain_graph=True),
        *torch.autograd.grad(probe, model.left.parameters(), retain_graph=True),
        *torch.autograd.grad(loss, model.right.parameters()),
    ]
    before = [one.detach().clone() for one in model.parameters()]
    with accumulator.update() as update:
        for x in update.micro_batches(batch.split([5, 3])):
            probe, loss = model.losses(x)
            update.backward(probe, into=[model.left], name="probe", retain_graph=True)
            update.backward(loss, into=[model.trunk, model.right.weight, model.right.bias])
    moved = [was - one.detach() for was, one in zip(before, model.parameters(), strict=True)]
    # Read off the weights, which costs digits.
    assert_same(moved, expected, rtol=1e-10 if batch.dtype == torch.float64 else 1e-4)


def test_of_a_module_what_is_owned_receives() -> None:
    model, _ = two_heads()
    accumulator = gg.Accumulator(torch.optim.SGD([model.trunk.weight], lr=1.0))
    before = model.trunk.bias.detach().clone()
    with accumulator.update() as update:
        update.backward(model.losses(randn(8, 3))[0], into=model)
    assert model.trunk.bias.grad is None
    assert torch.equal(model.trunk.bias, before)
