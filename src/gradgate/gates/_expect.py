"""Assert where a loss flows, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor, nn

from gradgate.autograd_graph import Graph
from gradgate.errors import FlowError, OptionError
from gradgate.gates._flow import Loss, look, place, stops_of

if TYPE_CHECKING:
    from gradgate.gates._trace import Trace

Parts: TypeAlias = "nn.Module | Tensor | Iterable[nn.Module | Tensor]"
"""Modules and parameters."""

_STEPS = 6


def expect_flow(loss: Loss, *, into: Parts = (), not_into: Parts = ()) -> None:
    """Raise unless a loss reaches all of some parameters, and none of others.

    Args:
        loss: a scalar with a graph, or a function that computes one: with it, errors name the lines. No backward
            pass is run.
        into: modules and parameters. Every parameter in them has to be reached.
        not_into: of these none may be reached.

    Raises:
        FlowError: names the first path that should not be, or what stops the first that should.
        ShapeError: the loss is no scalar.
        OptionError: nothing is given to look for, or a module without parameters.

    Example:
        >>> critic, generator = torch.nn.Linear(2, 1), torch.nn.Linear(2, 2)
        >>> fake = generator(torch.ones(1, 2))
        >>> expect_flow(critic(fake.detach()).sum(), into=[critic], not_into=[generator])
        >>> expect_flow(critic(fake).sum(), not_into=[generator])  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        gradgate.errors.FlowError: expect_flow: the loss reaches 2 of 2 parameters that it should not...
    """
    wanted, unwanted = _named(into), _named(not_into)
    if not wanted and not unwanted:
        raise OptionError(
            "expect_flow: neither into nor not_into names anything. Write "
            "expect_flow(loss, into=[D], not_into=[G])."
        )
    both = next((name for name, one in wanted if any(one is other for _, other in unwanted)), None)
    if both is not None:
        raise OptionError(f"expect_flow: {both} is in into and in not_into. It can be in one.")
    graph, trace = look(loss, (one for _, one in (*wanted, *unwanted)), "expect_flow")
    leaking = [(name, one) for name, one in unwanted if one in graph]
    if leaking:
        name, first = leaking[0]
        raise FlowError(
            f"expect_flow: the loss reaches {len(leaking)} of {len(unwanted)} parameters that it should not, "
            f"first {name}: {_path(graph, trace, first, name)}. Cut it, gg.stop_gradient(...), or let an update "
            "fill only what it owns, update.backward(loss)."
        )
    missing = [(name, one) for name, one in wanted if one not in graph]
    if missing:
        name, first = missing[0]
        stops = ", ".join(str(stop) for stop in stops_of(first, graph, trace))
        hint = "" if trace else " Pass a function that computes the loss to see where."
        raise FlowError(
            f"expect_flow: the loss does not reach {len(missing)} of {len(wanted)} parameters that it should, "
            f"first {name}: {stops}.{hint}"
        )


def _named(parts: Parts) -> list[tuple[str, Tensor]]:
    found: dict[Tensor, str] = {}
    for one in [parts] if isinstance(parts, (nn.Module, Tensor)) else parts:
        if isinstance(one, nn.Module):
            parameters = list(one.named_parameters())
            if not parameters:
                raise OptionError(
                    f"expect_flow: {type(one).__name__} has no parameters, so nothing flows into it. Leave it "
                    "out, or name the modules around it."
                )
            for name, parameter in parameters:
                found.setdefault(parameter, f"{type(one).__name__}.{name}")
        elif isinstance(one, Tensor):
            if not one.is_leaf:
                raise OptionError(
                    "expect_flow: it was given a tensor that was computed. Ask for parameters: pass the modules "
                    "and parameters before it."
                )
            found.setdefault(one, f"a tensor of shape {list(one.shape)}")
        else:
            raise OptionError(
                f"expect_flow: it was given a {type(one).__name__}. Pass modules and parameters."
            )
    return [(name, one) for one, name in found.items()]


def _path(graph: Graph, trace: Trace | None, leaf: Tensor, name: str) -> str:
    """Write a path from the loss to a parameter, its middle left out where it is long."""
    steps = []
    for node in graph.path_to(leaf)[:-1]:
        frame = None if trace is None else trace.frames.get(node)
        steps.append(node.name() + (f" ({place(frame)})" if frame else ""))
    if len(steps) > _STEPS:
        steps[_STEPS // 2 : -_STEPS // 2] = [f"{len(steps) - _STEPS} more"]
    return " <- ".join(["loss", *steps, name])
