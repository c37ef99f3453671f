"""The number with which a backward pass begins.

A weighted backward pass begins with ``count / unit``, times the loss scale, rather than with 1. A gate whose effect
is not linear in the gradient, such as :func:`gradgate.clip_gradient`, multiplies its limit by this number. Its
effect is then that of a plain ``loss.backward()``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from gradgate.torch_compat import backward_pass_number

_NOTHING = nullcontext()

# By the number of the pass: passes run in several threads at once, and within one another, and autograd runs the
# gates of a pass in threads of its own.
_seeds: dict[int, Tensor] = {}
_gates = {
    "any": False
}  # whether a gate has been made that reads them; publishing costs as much as a small pass


def reads_weight() -> None:
    """Record that a gate reads the weight of its pass. Called when a gate is made, before its first pass."""
    if not torch.compiler.is_compiling():
        _gates["any"] = True


def begins_with(seed: Tensor, loss: Tensor) -> AbstractContextManager[None]:
    """Publish the seed of the backward pass of ``loss`` in the block, if any gate may read it."""
    return _published(seed, loss) if _gates["any"] else _NOTHING


@contextmanager
def _published(seed: Tensor, loss: Tensor) -> Iterator[None]:
    numbers: list[int] = []

    def begin(_: object) -> None:
        numbers.append(backward_pass_number.use())
        _seeds[numbers[-1]] = seed

    hook = None if loss.grad_fn is None else loss.grad_fn.register_prehook(begin)
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()
        for number in numbers:
            _seeds.pop(number, None)


def weight_of_pass(gradient: Tensor) -> float | Tensor:
    """Return the size of the running pass's seed, for a gate that receives ``gradient``; 1 if none was published.

    Does not synchronize.
    """
    if torch.compiler.is_compiling():  # read when the compiled pass runs, not now
        weight: Tensor = torch.ops.gradgate.weight_of_pass(gradient.detach())
        return weight
    seed = _seeds.get(backward_pass_number.use())
    return 1.0 if seed is None else seed.detach().to(gradient.device).reshape(()).abs()


def _in_compiled_pass(gradient: Tensor) -> Tensor:
    seed = _seeds.get(backward_pass_number.use())
    weight = _fake(gradient)
    return weight.fill_(1.0) if seed is None else weight.copy_(seed.detach().reshape(())).abs_()


def _fake(gradient: Tensor) -> Tensor:
    _gates["any"] = True  # in eager code: torch.compile runs it to trace a gate
    dtype = torch.promote_types(gradient.dtype, torch.float32).to_real()
    return torch.empty((), dtype=dtype, device=gradient.device)


# It reads a value of this process, which a CUDA graph would record.
_TAGS = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
_library = torch.library.Library("gradgate", "FRAGMENT")
_library.define("weight_of_pass(Tensor gradient) -> Tensor", tags=_TAGS)
_library.impl("weight_of_pass", _in_compiled_pass, "CompositeExplicitAutograd")
torch.library.register_fake("gradgate::weight_of_pass", _fake, lib=_library)
