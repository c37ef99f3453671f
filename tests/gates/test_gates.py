"""Gates on tensors: the gradient is what the slow obvious formula says. Law 6, forward, is in tests/laws."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from gradgate.errors import OptionError
from gradgate.gates import clip_gradient, mask_gradient, reverse_gradient, scale_gradient, stop_gradient
from gradgate.pytree import tensors_in
from tests.messages import raises

MASK = torch.tensor([True, False, True])
FACTORS = torch.tensor([2.0, 0.0, -1.0], dtype=torch.float64)

Gate = Callable[[Any], Any]

# The gate, and what it makes of a gradient.
GATES: dict[str, tuple[Gate, Callable[[Tensor], Tensor]]] = {
    "scale": (lambda x: scale_gradient(x, 0.3), lambda g: 0.3 * g),
    "scale by a tensor": (
        lambda x: scale_gradient(x, FACTORS.to(x.dtype)),
        lambda g: g * FACTORS.to(g.dtype),
    ),
    "scale by a schedule": (lambda x: scale_gradient(x, lambda: 0.5), lambda g: 0.5 * g),
    "reverse": (reverse_gradient, lambda g: -g),
    "reverse strongly": (lambda x: reverse_gradient(x, strength=2), lambda g: -2 * g),
    "mask": (lambda x: mask_gradient(x, MASK), lambda g: g * MASK),
    "clip to a value": (lambda x: clip_gradient(x, max_value=0.5), lambda g: g.clamp(-0.5, 0.5)),
    "clip to a norm": (
        lambda x: clip_gradient(x, max_norm=0.7),
        lambda g: g * min(1.0, 0.7 / float(g.norm())),
    ),
}


def leaf(*values: float, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def behind(x: Tensor) -> Tensor:
    return (x.sin() * torch.arange(1.0, 4.0, dtype=x.dtype)).sum()


def expected(x: Tensor, rule: Callable[[Tensor], Tensor]) -> Tensor:
    y = x.detach().exp().requires_grad_()
    (gradient,) = torch.autograd.grad(behind(y), y)
    return rule(gradient) * x.detach().exp()


@pytest.mark.parametrize("name", GATES)
def test_the_gradient_is_what_the_formula_says(name: str) -> None:
    gate, rule = GATES[name]
    x = leaf(0.1, -0.7, 1.3)
    behind(gate(x.exp())).backward()
    torch.testing.assert_close(x.grad, expected(x, rule), rtol=1e-14, atol=1e-14)


LINEAR = {
    "scale": 0.3,
    "scale by a tensor": FACTORS,
    "scale by a schedule": 0.5,
    "reverse": -1.0,
    "reverse strongly": -2.0,
    "mask": MASK.double(),
}


@pytest.mark.parametrize("name", LINEAR)
def test_it_is_differentiated_twice_by_the_same_rule(name: str) -> None:
    """What is differentiated again passes the gate again: f(h'(y)) e^x, with f where h' meets y, too."""
    gate, factor = GATES[name][0], LINEAR[name]
    x = leaf(0.1, -0.7, 1.3)
    (first,) = torch.autograd.grad(behind(gate(x.exp())), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    y, k = x.detach().exp(), torch.arange(1.0, 4.0, dtype=torch.float64)
    slope, bend = k * y.cos(), -k * y.sin()
    outer = 2 * factor * slope * y
    wanted = outer * factor * slope * y + factor * (factor * outer * y * bend) * y
    torch.testing.assert_close(second, wanted, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("limit", [{"max_value": 0.5}, {"max_norm": 0.7}])
def test_a_clipped_gradient_can_be_differentiated(limit: dict[str, float]) -> None:
    scale = leaf(1.5)

    def gradient_norm(scale: Tensor) -> Tensor:
        x = leaf(0.1, -0.7, 1.3)
        (gradient,) = torch.autograd.grad(
            (clip_gradient(x, **limit) * scale).square().sum(), x, create_graph=True
        )
        return gradient.square().sum()

    assert torch.autograd.gradcheck(gradient_norm, (scale,))


@pytest.mark.parametrize("name", ["scale", "reverse", "mask"])
def test_it_works_within_vmap_and_grad(name: str) -> None:
    gate, rule = GATES[name]
    x = torch.randn(4, 3, dtype=torch.float64)
    per_sample = torch.func.vmap(torch.func.grad(lambda one: behind(gate(one))))(x)
    for row, gradient in zip(x, per_sample, strict=True):
        y = row.clone().requires_grad_()
        (wanted,) = torch.autograd.grad(behind(y), y)
        torch.testing.assert_close(gradient, rule(wanted))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_all_of_them_compile_into_one_graph() -> None:
    chosen = [GATES[name] for name in GATES if "schedule" not in name]
    leaves = [leaf(0.1, -0.7, 1.3) for _ in chosen]

    def loss(leaves: list[Tensor]) -> Tensor:
        gated = (behind(gate(x.exp())) for (gate, _), x in zip(chosen, leaves, strict=True))
        return sum(gated, torch.zeros((), dtype=torch.float64))

    torch.compile(loss, backend="aot_eager", fullgraph=True)(leaves).backward()
    for (_, rule), x in zip(chosen, leaves, strict=True):
        torch.testing.assert_close(x.grad, expected(x, rule))


def test_it_keeps_the_dtype_under_autocast() -> None:
    x = leaf(0.5, 2.0, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = scale_gradient(x.bfloat16(), torch.tensor([0.5, 2.0]))
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert x.grad.tolist() == [0.5, 2.0]


@dataclass
class Pair:
    x: Tensor
    n: int


def test_nests_are_gated_in_their_own_types() -> None:
    x, scalar, ids = leaf(1.0, 2.0), torch.tensor(3.0, requires_grad=True), torch.tensor([1, 2])
    out = scale_gradient({"a": (x, ids), "b": [scalar], "c": Pair(x, 4), "d": "text"}, 0.5)
    assert type(out["a"]) is tuple
    assert out["a"][1] is ids
    assert (out["c"].n, out["d"]) == (4, "text")
    (out["a"][0].sum() + out["b"][0] + out["c"].x.sum()).backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert scalar.grad.item() == 0.5
    assert not any(one.requires_grad for one in (stop_gradient((x, scalar))))


class Named(NamedTuple):
    x: Tensor
    name: str


def nest(x: Tensor) -> Any:
    return {
        "a": (x, [Pair(x, 2)], None),
        "b": Named(x, "name"),
        "c": OrderedDict(x=x),
        "text": "text",
    }


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_nests_are_gated_within_one_graph() -> None:
    """Also a nest that comes from outside of it, and leaves it."""
    x, other = leaf(1.0, 2.0), leaf(1.0, 2.0)

    def both(given: Any, other: Tensor) -> tuple[Any, Any]:
        return scale_gradient(given, 0.5), scale_gradient(nest(other), 0.5)

    compiled = torch.compile(both, backend="aot_eager", fullgraph=True)
    outs = compiled(nest(x), other)
    for out in outs:
        assert [type(part) for part in out.values()] == [type(part) for part in nest(x).values()]
    sum((one.sum() for one in tensors_in(outs)), torch.zeros(())).backward()
    assert x.grad.tolist() == other.grad.tolist() == [0.5 * 4] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_16_bit_gradient_is_limited_to_the_norm(dtype: torch.dtype) -> None:
    """Its norm is 94868, above the largest float16, 65504; the factor is below the smallest normal one."""
    x = torch.zeros(1000, dtype=dtype, requires_grad=True)
    (clip_gradient(x, max_norm=1.0) * 3000).sum().backward()
    assert x.grad.dtype == dtype
    assert float(x.grad.double().norm()) == pytest.approx(1.0, rel=float(torch.finfo(dtype).eps))


def test_a_factor_in_a_tensor_is_not_rounded_to_the_gradients_type() -> None:
    x = torch.zeros(1, dtype=torch.float16, requires_grad=True)
    (scale_gradient(x, torch.tensor(1e-8)) * 60000).sum().backward()  # 1e-8 is zero in float16
    assert float(x.grad) == pytest.approx(6e-4, rel=1e-3)


def test_complex_gradients_are_scaled_masked_and_limited_in_norm() -> None:
    x = torch.tensor([1 + 1j, 2 - 1j], requires_grad=True)
    scale_gradient(x, 0.5).abs().sum().backward()
    (whole,) = torch.autograd.grad(x.abs().sum(), x)
    torch.testing.assert_close(x.grad, 0.5 * whole)
    (limited,) = torch.autograd.grad(clip_gradient(x, max_norm=0.1).abs().sum(), x)
    assert float(limited.abs().square().sum().sqrt()) == pytest.approx(0.1)
    with raises(OptionError, "a complex value clipped"):
        clip_gradient(x, max_value=1.0)


def test_a_masked_nan_does_not_pass() -> None:
    x = leaf(0.0, 1.0, 2.0)
    (mask_gradient(x, torch.tensor([False, True, True])).sqrt()).sum().backward()  # 1 / (2 sqrt(0)) is inf
    assert x.grad.isfinite().all()
