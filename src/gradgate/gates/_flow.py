"""Reports which parameters a loss reaches, through how many paths, and where the gradient to the others stops."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradgate.autograd_graph import REENTRANT_CHECKPOINT, Graph
from gradgate.errors import OptionError, ShapeError
from gradgate.gates._reach import Reach, Stop
from gradgate.gates._render import to_figure, to_html, to_text

if TYPE_CHECKING:
    from gradgate.gates._trace import FlowCut, Trace

Loss: TypeAlias = "Tensor | Callable[[], Any]"
"""A scalar with a graph, or a function that computes one. Only a function shows where gradient was stopped."""


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
        return to_text(self.model, self.parameters)

    def _repr_html_(self) -> str:
        return to_html(self.model, self.parameters)

    def to_dict(self) -> dict[str, Any]:
        """Return the flow in plain containers, for JSON."""
        return dataclasses.asdict(self)

    def figure(self) -> Any:
        """Return a Sankey diagram as a ``plotly`` figure: from the loss through modules to where the gradient ends.

        Widths are numbers of parameters. Needs plotly: ``pip install 'gradgate[show]'``.
        """
        return to_figure(self.model, self.parameters)


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
        The flow ``found``: ``print(found)`` shows a tree, ``found["encoder.weight"].stops`` has the data, and
        ``found.figure()`` draws it.

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


def trace_loss(loss: Loss, parameters: Iterable[Tensor], verb: str) -> tuple[Graph, Trace | None]:
    """Return a loss's graph, and the trace of its computation if the loss is a function."""
    trace = None
    if not isinstance(loss, Tensor):
        if not callable(loss):
            raise OptionError(
                f"{verb}: the loss is a {type(loss).__name__}. Pass a tensor, or a function that computes it: "
                f"{verb}(lambda: loss_fn(model(x)), ...)."
            )
        from gradgate.gates._trace import Trace  # lazily: it imports the events

        # Compiled functions run eagerly here: only then can their operations be traced.
        with torch.compiler.set_stance("force_eager"), Trace(parameters) as trace:
            loss = loss()
        if isinstance(loss, tuple) and loss:
            loss = loss[0]
        if not isinstance(loss, Tensor):
            raise OptionError(
                f"{verb}: the function returned a {type(loss).__name__}. Return the loss, a scalar."
            )
    if loss.numel() != 1:
        raise ShapeError(
            f"{verb}: the loss has shape {list(loss.shape)}, but it must be a scalar. Pass loss.mean() or "
            "loss.sum()."
        )
    if trace is not None:
        trace.end(loss)
    return Graph(loss), trace


def stops_of(parameter: Tensor, graph: Graph, trace: Trace | None) -> list[Stop]:
    """Return what stops the gradient between a loss and a parameter, nearest to the loss first."""
    stops = [] if trace is None else _stops_at(parameter, trace.cuts)
    if parameter in graph:
        # Masks and indices never carry a gradient, so no path through them is missing.
        return [stop for stop in stops if stop.why != "not differentiable"]
    if not parameter.requires_grad:
        used_directly = trace is None or id(parameter) in trace.used
        return [*([] if used_directly else stops), Stop("requires_grad")]
    if stops:
        return stops
    if trace is None:
        return [Stop("not in the graph")]
    if id(parameter) in trace.used:
        if graph.has(REENTRANT_CHECKPOINT) or "CheckpointFunction" in trace.functions:
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
    for group in (group for each in optimizers for group in each.param_groups):
        for parameter in group["params"]:
            rates[id(parameter)] = max(rates.get(id(parameter), 0.0), float(group.get("lr", 1.0)))
    return rates


def _unstepped(parameter: Tensor, rates: Mapping[int, float] | None) -> list[Stop]:
    if rates is None or not parameter.requires_grad:
        return []
    if id(parameter) not in rates:
        return [Stop("not in the optimizer")]
    return [Stop("lr=0")] if rates[id(parameter)] == 0 else []
