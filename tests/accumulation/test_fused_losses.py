"""Losses that fuse the last layer with the cross entropy: their graph shows no count; with one, they are exact.

Liger-Kernel and Cut Cross-Entropy are tested where they are installed, Liger on a CPU with ``TRITON_INTERPRET=1``:
its kernels then run in Triton's interpreter. ``Fused`` has their shape, and is always tested.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gradgate as gg
from gradgate.errors import CountError
from gradgate.testing import compare_update

TOKENS, VOCABULARY, WIDTH = 7, 50, 16
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


class Fused(torch.autograd.Function):
    """As Liger's: both gradients are computed in the forward pass, the backward pass scales them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        with torch.enable_grad():
            inputs = x.detach().requires_grad_(), weight.detach().requires_grad_()
            loss = F.cross_entropy(inputs[0] @ inputs[1].T, targets)
        ctx.save_for_backward(*torch.autograd.grad(loss, inputs))
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        of_x, of_weight = ctx.saved_tensors
        return of_x * grads[0], of_weight * grads[0], None


def same_shape() -> tuple[Loss, str]:
    return Fused.apply, "FusedBackward"


def from_liger(name: str) -> Any:
    if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("without a GPU, Liger's kernels need TRITON_INTERPRET=1")
    return getattr(pytest.importorskip("liger_kernel.transformers"), name)()


def liger_fused() -> tuple[Loss, str]:
    loss = from_liger("LigerFusedLinearCrossEntropyLoss")
    return lambda x, weight, y: loss(weight, x, y), "LigerFusedLinearCrossEntropyFunctionBackward"


def liger() -> tuple[Loss, str]:
    loss = from_liger("LigerCrossEntropyLoss")
    return lambda x, weight, y: loss(x @ weight.T, y), "LigerCrossEntropyFunctionBackward"


def cut_cross_entropy() -> tuple[Loss, str]:
    loss = pytest.importorskip("cut_cross_entropy").linear_cross_entropy
    return lambda x, weight, y: loss(x, weight, y, impl="torch_compile"), "CompiledFunctionBackward"


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return torch.tanh(self.body(self.embed(ids))).flatten(0, 1)


@pytest.mark.parametrize("fused", [same_shape, liger_fused, liger, cut_cross_entropy])
# torch.compile's own:
@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf", "ignore::DeprecationWarning"
)
def test_a_fused_loss_needs_a_count_and_is_exact_with_it(fused: Callable[[], tuple[Loss, str]]) -> None:
    loss, node = fused()
    model = Model()
    ids, labels = torch.randint(VOCABULARY, (8, TOKENS)), torch.randint(VOCABULARY, (8, TOKENS))
    labels[0, 2:] = labels[5, 1:] = -100  # micro-batches of 9, 14, 8 and 14 valid tokens
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accumulator = gg.Accumulator(optimizer, model=model)
    before = [parameter.detach().clone() for parameter in model.parameters()]

    with pytest.raises(
        CountError, match=rf"ends in {node}, .* Pass the number of items in this loss: count="
    ):
        accumulator.step_window(lambda x: loss(model(x), model.head.weight, labels[:2].flatten()), [ids[:2]])
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())

    def loop(batch: tuple[Tensor, Tensor], *, counted: bool = True) -> None:
        with accumulator.update() as update:
            for x, y in update.micro_batches(list(zip(batch[0].split(2), batch[1].split(2), strict=True))):
                valid = (y != -100).sum()
                update.backward(
                    loss(model(x), model.head.weight, y.flatten()), count=valid if counted else len(y)
                )

    def of_the_whole_batch(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model.head(model(batch[0])), batch[1].flatten())

    options: dict[str, Any] = {"optimizer": optimizer, "model": model, "loss_fn": of_the_whole_batch}
    assert compare_update(loop, (ids, labels), **options).error < 1e-5  # float32, sums of 45 items
    assert compare_update(lambda batch: loop(batch, counted=False), (ids, labels), **options).error > 0.01
