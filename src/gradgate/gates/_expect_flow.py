"""Assert which parameters a loss reaches, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from torch import Tensor, nn

from gradgate.autograd_graph import Graph
from gradgate.errors import FlowError, OptionError
from gradgate.gates._flow import Loss, stops_of, trace_loss
from gradgate.gates._trace import Trace, location

Parts: TypeAlias = "nn.Module | Tensor | Iterable[nn.Module | Tensor]"
"""Modules and parameters."""

_STEPS = 6


def expect_flow(loss: Loss, *, into: Parts = (), not_into: Parts = ()) -> None:
    """Raise unless a loss reaches every parameter in ``into``, and none in ``not_into``.

    Args:
        loss: a scalar with a graph, or a function that computes one; with a function, errors name the lines. No
            backward pass runs.
        into: parameters that the loss must reach, and modules of which it must reach every parameter.
        not_into: modules and parameters that the loss must not reach.

    Raises:
        FlowError: the loss reaches an unwanted parameter (the message shows the path), or misses a wanted one (the
            message shows where the gradient stops).
        ShapeError: the loss is not a scalar.
        OptionError: no module or parameter is given, or a module has no parameters.

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
    excluded = {id(parameter) for _, parameter in unwanted}
    both = [name for name, parameter in wanted if id(parameter) in excluded]
    if both:
        raise OptionError(f"expect_flow: {both[0]} is in both into and not_into. Name it in one.")
    graph, trace = trace_loss(loss, [parameter for _, parameter in (*wanted, *unwanted)], "expect_flow")
    leaking = [(name, parameter) for name, parameter in unwanted if parameter in graph]
    if leaking:
        name, first = leaking[0]
        raise FlowError(
            f"expect_flow: the loss reaches {len(leaking)} of {len(unwanted)} parameters that it should not, "
            f"first {name}: {_path(graph, trace, first, name)}. Stop the gradient with gg.stop_gradient(...), or "
            "use update.backward(loss), which fills only the parameters that the update owns."
        )
    missing = [(name, parameter) for name, parameter in wanted if parameter not in graph]
    if missing:
        name, first = missing[0]
        stops = ", ".join(str(stop) for stop in stops_of(first, graph, trace))
        hint = "" if trace.ended else " Pass a function that computes the loss to see where."
        raise FlowError(
            f"expect_flow: the loss does not reach {len(missing)} of {len(wanted)} parameters that it should, "
            f"first {name}: {stops}.{hint}"
        )


def _named(parts: Parts) -> list[tuple[str, Tensor]]:
    names: dict[Tensor, str] = {}
    for part in [parts] if isinstance(parts, (nn.Module, Tensor)) else parts:
        kind = type(part).__name__
        if isinstance(part, nn.Module):
            parameters = list(part.named_parameters())
            if not parameters:
                raise OptionError(
                    f"expect_flow: {kind} has no parameters, so no gradient flows into it. Leave it out, or pass "
                    "the modules around it."
                )
            for name, parameter in parameters:
                names.setdefault(parameter, f"{kind}.{name}")
        elif not isinstance(part, Tensor):
            raise OptionError(f"expect_flow: got a {kind}. Pass modules and parameters.")
        elif not part.is_leaf:
            raise OptionError(
                "expect_flow: got a computed tensor. Pass the modules and parameters that it depends on."
            )
        else:
            names.setdefault(part, f"a tensor of shape {list(part.shape)}")
    return [(name, parameter) for parameter, name in names.items()]


def _path(graph: Graph, trace: Trace, leaf: Tensor, name: str) -> str:
    """Return a path from the loss to a parameter, without its middle if it is long."""
    steps = []
    for node in graph.path_to(leaf)[:-1]:
        frame = trace.frames.get(node)
        steps.append(node.name() + (f" ({location(frame)})" if frame else ""))
    if len(steps) > _STEPS:
        steps[_STEPS // 2 : -_STEPS // 2] = [f"{len(steps) - _STEPS} more"]
    return " <- ".join(["loss", *steps, name])
