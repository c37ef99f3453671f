"""Reports which parameters a loss reaches, through how many paths, and where the gradient to the others stops."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradgate.autograd_graph import Graph, ops
from gradgate.errors import OptionError, ShapeError
from gradgate.gates._trace import FlowCut, Stop, Trace

_WIDTH = 88

Loss: TypeAlias = "Tensor | Callable[[], Any]"
"""A scalar with a graph, or a function that computes one. Only a function shows where gradient was stopped."""


@dataclass(frozen=True)
class Reach:
    """How many paths lead from a loss to a parameter, and what stops the gradient on other paths.

    Even a parameter that is reached can have stops: on its other paths, or because no optimizer uses its gradient.
    """

    name: str
    shape: tuple[int, ...]
    paths: int
    stops: tuple[Stop, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether the loss gives the parameter a gradient."""
        return self.paths > 0


@dataclass(frozen=True, repr=False)
class Flow:
    """Where the gradient of a loss flows in a model. :func:`flow` returns it; ``print`` shows it as a tree."""

    model: str
    parameters: tuple[Reach, ...]

    @property
    def reached(self) -> list[str]:
        """The names of the parameters that receive gradient."""
        return [parameter.name for parameter in self.parameters if parameter.reached]

    @property
    def stopped(self) -> list[str]:
        """The names of the parameters that receive no gradient."""
        return [parameter.name for parameter in self.parameters if not parameter.reached]

    def __getitem__(self, name: str) -> Reach:
        """Return the entry of one parameter, by the parameter's name."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)

    def __repr__(self) -> str:
        return f"Flow({self.model}: {len(self.reached)} of {len(self.parameters)} tensors reached)"

    def __str__(self) -> str:
        rows = list(_rows(self.model, self.parameters))
        width = max(len(label) for label, _, _ in rows)
        lines = []
        for label, count, outcome in rows:
            start = f"{label.ljust(width)}  {count.ljust(9)}"
            lines += textwrap.wrap(
                outcome,
                _WIDTH,
                initial_indent=start,
                subsequent_indent=" " * len(start),
                break_long_words=False,
                break_on_hyphens=False,
            ) or [start]
        return "\n".join(line.rstrip() for line in lines)

    def to_dict(self) -> dict[str, Any]:
        """Return the flow in plain containers, for JSON."""
        return dataclasses.asdict(self)


def flow(loss: Loss, model: nn.Module, *, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> Flow:
    """Report which parameters of a model a loss reaches, and where and why gradient is stopped.

    The graph of a loss shows which parameters it reaches, but not where a path was cut. To see that, pass a
    function that computes the loss: its operations are traced. No backward pass runs, and no gradient changes.

    Args:
        loss: a scalar tensor with a graph; or a function without arguments that returns one (or a loss and its
            count). The function runs once, as in training: batch norms update their statistics, and dropout
            draws random numbers.
        model: the module whose parameters are reported.
        optimizer: one or several. If given, the flow also reports unused gradients: those of parameters that
            are in no optimizer, or whose learning rate is 0.

    Returns:
        The flow ``found``: ``print(found)`` shows a tree, and ``found["encoder.weight"].stops`` has the data.

    Raises:
        ShapeError: the loss is not a scalar.
        OptionError: the model has no parameters, or the function returns no tensor.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> def loss_fn():
        ...     code = model[0](torch.ones(1, 2))
        ...     return model[1](code.detach()).sum()
        >>> found = flow(loss_fn, model)
        >>> found
        Flow(Sequential: 2 of 4 tensors reached)
        >>> found.reached
        ['1.weight', '1.bias']
        >>> found["0.weight"].stops[0].why, found["0.weight"].stops[0].frame.line
        ('detach', 3)
    """
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"flow: the model is a {type(model).__name__}. Pass a module, whose parameters have names."
        )
    names = dict(model.named_parameters())
    if not names:
        raise OptionError(f"flow: {type(model).__name__} has no parameters. Pass a module that has some.")
    graph, trace = trace_loss(loss, names.values(), "flow")
    paths = graph.paths()
    rates = None if optimizer is None else _rates(optimizer)
    return Flow(
        type(model).__name__,
        tuple(
            Reach(
                name,
                tuple(parameter.shape),
                paths.get(id(parameter), 0),
                (*stops_of(parameter, graph, trace), *_unstepped(parameter, rates)),
            )
            for name, parameter in names.items()
        ),
    )


def _rows(
    label: str, parameters: Sequence[Reach], depth: int = 0, indent: str = ""
) -> Iterator[tuple[str, str, str]]:
    """Yield a row for a module: label, count and outcome. If its parameters differ, rows for its parts follow."""
    reached = sum(parameter.reached for parameter in parameters)
    count = f"{reached} of {len(parameters)}"
    if len(parameters) == 1:
        count = "reached" if reached else "stopped"
    if len({(parameter.reached, parameter.stops) for parameter in parameters}) == 1:
        yield label, count, _outcome([parameter.paths for parameter in parameters], parameters[0].stops)
        return
    yield label, count, "" if depth else "tensors"
    parts: dict[str, list[Reach]] = {}
    for parameter in parameters:
        parts.setdefault(parameter.name.split(".")[depth], []).append(parameter)
    for number, (name, inside) in enumerate(parts.items(), start=1):
        branch, following = ("└─ ", "   ") if number == len(parts) else ("├─ ", "│  ")
        yield from _rows(f"{indent}{branch}{name}", inside, depth + 1, indent + following)


def _outcome(paths: Sequence[int], stops: Sequence[Stop]) -> str:
    """Return how many paths lead to parameters with the same stops, or what stops their gradient."""
    if not any(paths):
        return ", ".join(map(str, stops))
    least, most = _short(min(paths)), _short(max(paths))
    texts = [f"{least if least == most else f'{least} to {most}'} {'path' if most == '1' else 'paths'}"]
    texts += [f"but {stop}" for stop in stops if stop.unstepped]
    texts += [f"another stopped by {stop}" for stop in stops if not stop.unstepped]
    return ", ".join(texts)


def _short(number: int) -> str:
    return str(number) if number < 1_000_000 else f"{float(number):.1e}" if number < 1e300 else "countless"


def trace_loss(loss: Loss, parameters: Iterable[Tensor], verb: str) -> tuple[Graph, Trace]:
    """Return a loss's graph, and the trace of its computation, which is empty if the loss is a tensor."""
    trace = Trace(parameters)
    if not isinstance(loss, Tensor):
        if not callable(loss):
            raise OptionError(
                f"{verb}: the loss is a {type(loss).__name__}. Pass a tensor, or a function that computes it: "
                f"{verb}(lambda: loss_fn(model(x)), ...)."
            )
        # Compiled functions run eagerly here: only then can their operations be traced.
        with torch.compiler.set_stance("force_eager"), trace:
            loss = loss()
        if isinstance(loss, tuple) and loss:
            loss = loss[0]
        if not isinstance(loss, Tensor):
            raise OptionError(
                f"{verb}: the function returned a {type(loss).__name__}. Return the loss, a scalar."
            )
        trace.end(loss)
    if loss.numel() != 1:
        raise ShapeError(
            f"{verb}: the loss has shape {list(loss.shape)}, but it must be a scalar. Pass loss.mean() or "
            "loss.sum()."
        )
    return Graph(loss), trace


def stops_of(parameter: Tensor, graph: Graph, trace: Trace) -> list[Stop]:
    """Return what stops the gradient between a loss and a parameter, nearest to the loss first."""
    stops = _stops_at(parameter, trace.cuts)
    if parameter in graph:
        # Masks and indices never carry a gradient, so no path through them is missing.
        return [stop for stop in stops if stop.why != "not differentiable"]
    if not parameter.requires_grad:
        return [*([] if id(parameter) in trace.used else stops), Stop("requires_grad")]
    if stops:
        return stops
    if not trace.ended:
        return [Stop("not in the graph")]
    if id(parameter) in trace.used:
        if graph.has(ops.REENTRANT_CHECKPOINT) or "CheckpointFunction" in trace.functions:
            return [Stop("reentrant checkpoint")]
        return [Stop("custom function" if trace.functions else "not differentiable")]
    return _stops_at(parameter, trace.taken) or [Stop("not used")]


def _stops_at(parameter: Tensor, cuts: Iterable[FlowCut]) -> list[Stop]:
    """Return what stops the gradient at the cuts between a parameter and the loss, without repeats."""
    return list(dict.fromkeys(cut.stop for cut in cuts if id(parameter) in cut.behind))


def _rates(optimizer: Optimizer | Sequence[Optimizer]) -> Mapping[int, float]:
    """Return the learning rate of each parameter in an optimizer, by its id."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    rates: dict[int, float] = {}
    for group in (group for stepped in optimizers for group in stepped.param_groups):
        for parameter in group["params"]:
            rates[id(parameter)] = max(rates.get(id(parameter), 0.0), float(group.get("lr", 1.0)))
    return rates


def _unstepped(parameter: Tensor, rates: Mapping[int, float] | None) -> list[Stop]:
    if rates is None or not parameter.requires_grad:
        return []
    if id(parameter) not in rates:
        return [Stop("not in the optimizer")]
    return [Stop("lr=0")] if rates[id(parameter)] == 0 else []
