"""Which parameters a loss reaches, through how many paths, and where gradient stops on the way to the others."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gradgate.autograd_graph import REENTRANT_CHECKPOINT, Graph
from gradgate.errors import OptionError, ShapeError

if TYPE_CHECKING:
    from gradgate.events import Frame
    from gradgate.gates._trace import Trace

Loss: TypeAlias = "Tensor | Callable[[], Any]"
"""A scalar with a graph, or a function that computes one: only such a one tells where gradient was stopped."""

Why: TypeAlias = Literal[
    "detach",
    "no_grad",
    "inference_mode",
    "not differentiable",
    "value taken out",
    "requires_grad",
    "custom function",
    "reentrant checkpoint",
    "not used",
    "not in the graph",
    "not in the optimizer",
    "lr=0",
]


@dataclass(frozen=True)
class Stop:
    """Something that keeps a loss from moving a parameter.

    ``why`` is the kind: an operation without a gradient ("detach", "no_grad", "inference_mode", "not
    differentiable", "value taken out" such as ``.item()``, "custom function", "reentrant checkpoint"); the
    parameter itself ("requires_grad"); what becomes of its gradient ("not in the optimizer", "lr=0"); or that there
    is nothing to stop ("not used" by the loss). "not in the graph" is said where only a loss was given, and not the
    function that computes it. ``op`` is the operation's name, ``frame`` the user's line where that is known.
    """

    why: Why
    op: str = ""
    frame: Frame | None = None

    @property
    def unstepped(self) -> bool:
        """Whether the gradient is there, and no optimizer uses it."""
        return self.why in ("not in the optimizer", "lr=0")

    def __str__(self) -> str:
        op = f" ({self.op})" if self.op and self.op != self.why else ""
        return f"{self.why}{op}{'' if self.frame is None else f' at {place(self.frame)}'}"


@dataclass(frozen=True)
class Reach:
    """How a loss reaches a parameter: through how many paths of its graph, 0 if not at all; and what stops it.

    A parameter that is reached may have stops as well: other paths that are cut, or no optimizer that uses it.
    """

    name: str
    shape: tuple[int, ...]
    paths: int
    stops: tuple[Stop, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether the loss leaves a gradient in it."""
        return self.paths > 0


@dataclass(frozen=True)
class Flow:
    """Where the gradient of a loss flows in a model. Made by :func:`flow`; ``str`` shows it as a tree."""

    model: str
    parameters: tuple[Reach, ...]

    @property
    def reached(self) -> list[str]:
        """The names of the parameters that receive gradient."""
        return [one.name for one in self.parameters if one.reached]

    @property
    def stopped(self) -> list[str]:
        """The names of those that do not."""
        return [one.name for one in self.parameters if not one.reached]

    def __getitem__(self, name: str) -> Reach:
        """Return how one parameter is reached, by its name."""
        for one in self.parameters:
            if one.name == name:
                return one
        raise KeyError(name)

    def __str__(self) -> str:
        from gradgate.gates._tree import to_text

        return to_text(self)

    def _repr_html_(self) -> str:
        from gradgate.gates._card import to_html

        return to_html(self)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it in plain containers, for JSON."""
        return dataclasses.asdict(self)

    def figure(self) -> Any:
        """Return a Sankey diagram as a ``plotly`` figure: from the loss through modules to what becomes of it.

        Widths are numbers of parameters. Needs plotly: ``pip install 'gradgate[show]'``.
        """
        from gradgate.gates._figure import to_figure

        return to_figure(self)


def flow(loss: Loss, model: nn.Module, *, optimizer: Optimizer | Sequence[Optimizer] | None = None) -> Flow:
    """Say which parameters of a model a loss reaches, and where and by what gradient is stopped.

    A loss's graph knows what it reaches. Where a path was cut it does not know: pass a function that computes the
    loss, and its operations are watched. No backward pass is run, no gradient changes.

    Args:
        loss: a scalar tensor with a graph; or a function without arguments that returns one (or a loss and its
            count). The function is run once, as in training: batch norms move their statistics, and dropout
            draws random numbers.
        model: whose parameters are asked for.
        optimizer: one or several. Given, it is also said which gradients nobody uses: of parameters that no
            optimizer has, or whose learning rate is 0.

    Returns:
        the flow: printed as a tree, ``flow["encoder.weight"].stops`` as data, ``flow.figure()`` as a picture.

    Raises:
        ShapeError: the loss is no scalar.
        OptionError: the model has no parameters, or the function returns no tensor.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 1))
        >>> def loss_fn():
        ...     code = model[0](torch.ones(1, 2))
        ...     return model[1](code.detach()).sum()
        >>> found = flow(loss_fn, model)
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
        raise OptionError(
            f"flow: {type(model).__name__} has no parameters, so there is nothing to reach. Pass the module that "
            "holds them."
        )
    graph, trace = look(loss, names.values(), "flow")
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


def look(loss: Loss, parameters: Iterable[Tensor], verb: str) -> tuple[Graph, Trace | None]:
    """Return a loss's graph, and what was seen while it was computed, if it was."""
    trace = None
    if not isinstance(loss, Tensor):
        if not callable(loss):
            raise OptionError(
                f"{verb}: the loss is a {type(loss).__name__}. Pass a tensor, or a function that computes it: "
                f"{verb}(lambda: loss_fn(model(x)), ...)."
            )
        from gradgate.gates._trace import Trace  # and with it all that events are made of

        # What is compiled runs as it is written, so that it can be looked into.
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
            f"{verb}: the loss has shape {list(loss.shape)}, a scalar is needed. Pass loss.mean() or loss.sum()."
        )
    if trace is not None:
        trace.end(loss)
    return Graph(loss), trace


def stops_of(parameter: Tensor, graph: Graph, trace: Trace | None) -> list[Stop]:
    """Return what stops gradient on its way to a parameter: of cuts in a row all, nearest to the loss first."""
    reached = parameter in graph
    cuts = [] if trace is None else [one for one in trace.cuts if id(parameter) in one.behind]
    stops = list(dict.fromkeys(Stop(one.kind, one.op, one.frame) for one in cuts))  # each line once
    if reached:
        # Masks and indices carry no gradient anywhere; that is no path of which anybody thinks.
        return [one for one in stops if one.why != "not differentiable"]
    if not parameter.requires_grad:
        only = trace is None or id(parameter) in trace.used  # else it is cut off as well
        return [Stop("requires_grad")] if only else [*stops, Stop("requires_grad")]
    if stops:
        return stops
    if trace is None:
        return [Stop("not in the graph")]
    if id(parameter) in trace.used:
        if graph.has(REENTRANT_CHECKPOINT) or "CheckpointFunction" in trace.functions:
            return [Stop("reentrant checkpoint")]
        return [Stop("custom function" if trace.functions else "not differentiable")]
    taken = [one for one in trace.taken if id(parameter) in one.behind]
    return list(dict.fromkeys(Stop(one.kind, one.op, one.frame) for one in taken)) or [Stop("not used")]


def _rates(optimizer: Optimizer | Sequence[Optimizer]) -> Mapping[int, float]:
    """Return the learning rate of each parameter that is stepped, by its id."""
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    groups = [group for one in optimizers for group in one.param_groups]
    rates: dict[int, float] = {}
    for group in groups:
        for parameter in group["params"]:
            rates[id(parameter)] = max(rates.get(id(parameter), 0.0), float(group.get("lr", 1.0)))
    return rates


def _unstepped(parameter: Tensor, rates: Mapping[int, float] | None) -> list[Stop]:
    if rates is None or not parameter.requires_grad:
        return []
    if id(parameter) not in rates:
        return [Stop("not in the optimizer")]
    return [Stop("lr=0")] if rates[id(parameter)] == 0 else []


def place(frame: Frame) -> str:
    """Write a line of code shortly."""
    return f"{frame.file.rpartition('/')[2]}:{frame.line}"
