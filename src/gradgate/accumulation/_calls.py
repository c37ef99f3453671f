"""Reads a window's backward calls: to which micro-batch and loss each belongs, and which parameters it fills."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from torch import Tensor, nn

from gradgate.accumulation._settings import Models
from gradgate.autograd_graph import Graph
from gradgate.batch_layout import looks_like_batch
from gradgate.errors import GraphError, OptionError, OwnerError, UpdateError

T = TypeVar("T")

Into: TypeAlias = "nn.Module | Tensor | Sequence[nn.Module | Tensor]"
"""Modules and parameters."""


def receivers(into: Into, owned: Sequence[Tensor], models: Models, *, sharded: bool) -> list[Tensor]:
    """Return the owned parameters that ``into`` names, in the order of the optimizers.

    Raises:
        OwnerError: a parameter is not owned, or a module holds no owned parameter.
        GraphError: a module or parameter in ``into`` is frozen.
        OptionError: ``into`` is empty, or holds anything other than modules and parameters.
        UpdateError: parameters are sharded over ranks.
    """
    if sharded:
        raise UpdateError(
            "backward: into does not work under fully_shard, which fills every parameter that the loss reaches. "
            "Stop the gradient to the others instead: gg.stop_gradient(...)."
        )
    given = [into] if isinstance(into, (nn.Module, Tensor)) else list(into)
    if not given:
        raise OptionError(
            "backward: into is empty, so no parameter would receive a gradient. Leave this call out."
        )
    ours = {id(parameter) for parameter in owned}
    chosen: set[int] = set()
    for target in given:
        if not isinstance(target, (nn.Module, Tensor)):
            raise OptionError(
                f"backward: into holds a {type(target).__name__}. Pass modules and parameters: into=[model.head]."
            )
        inside = target.parameters() if isinstance(target, nn.Module) else [target]
        parts = [parameter for parameter in inside if id(parameter) in ours]
        if not parts:
            raise OwnerError(
                f"backward: into=[...] names {models.name(target)}, which no optimizer of this accumulator owns. "
                "An update fills only parameters that it owns. Use the accumulator that owns these parameters, "
                "or add them to the optimizer."
            )
        if not any(parameter.requires_grad for parameter in parts):
            raise GraphError(
                f"backward: into=[...] names {models.name(target)}, which is frozen (requires_grad is False). "
                "Unfreeze it, or leave it out."
            )
        chosen |= {id(parameter) for parameter in parts}
    return [parameter for parameter in owned if id(parameter) in chosen]


def check_reached(loss: Tensor, parameters: Sequence[Tensor], models: Models) -> None:
    """Raise GraphError if a loss reaches none of the parameters that ``into`` names."""
    graph = Graph(loss)
    if not any(parameter in graph for parameter in parameters):
        refuse_unreached(parameters, models)


def refuse_unreached(parameters: Sequence[Tensor], models: Models) -> None:
    """Raise the GraphError for a loss that reaches none of these parameters."""
    names = ", ".join(models.name(parameter) for parameter in parameters[:3])
    raise GraphError(
        f"backward: the loss reaches none of the {len(parameters)} parameters selected by into=[...]: {names}. "
        "A tensor in between is detached, or these parameters take no part in the loss: print(gg.flow(loss_fn, "
        "model)) shows where the gradient stops."
    )


def check_window(window: Iterable[object], verb: str) -> None:
    """Raise OptionError if a single batch was passed instead of a sequence of micro-batches."""
    if isinstance(window, (list, tuple)):
        of_batches = window and isinstance(window[0], (list, tuple, dict))
        if not of_batches and looks_like_batch(window):
            raise OptionError(
                f"{verb}: a window is a sequence of micro-batches, but these tensors look like the fields of one "
                "batch: all hold the same number of samples, but they differ in dtype or number of dimensions. "
                "Pass [batch], or call accumulator.step(loss_fn, batch)."
            )
    elif isinstance(window, (Tensor, Mapping, str)):
        raise OptionError(
            f"{verb}: a window is a sequence of micro-batches, but this is a single {type(window).__name__}. "
            "Pass [batch], or split it: batch.split(32). For a stack of micro-batches, pass "
            "stack.unbind()."
        )


def length_of(loader: Iterable[object]) -> int | None:
    """Return the length of an iterable, or None if it has none."""
    try:
        return len(loader)  # type: ignore[arg-type]
    except TypeError:
        return None


class MicroBatchCounter:
    """Counts the micro-batches and backward calls of a window, and names its losses."""

    in_loop = False  # whether the script loops over `update.micro_batches(...)`
    expected = 1  # how many micro-batches the window will have, if known
    micro_batches = 0  # micro-batches begun so far, including those of a resumed window
    calls = 0  # backward calls in the current micro-batch
    idle = 0  # earlier micro-batches without a backward call: the loop skipped them, or drew them too early
    to_skip = 0  # micro-batches that a resumed window has already added
    unnamed = 0  # losses without a name in the current micro-batch
    usual = 0  # losses without a name in each earlier micro-batch

    @property
    def done(self) -> int:
        """The number of micro-batches whose losses are in the sum."""
        return self.micro_batches - (self.in_loop and not self.calls)

    def resume(self, done: int) -> None:
        self.micro_batches = self.to_skip = done

    def begin(self, number: int) -> None:
        if self.unnamed != self.usual:
            self.check_losses()
        if not self.calls and number > self.to_skip + 1:
            self.idle += 1
        self.micro_batches, self.calls, self.unnamed = number, 0, 0

    def refuse_idle(self, what: str) -> None:
        """Raise UpdateError if earlier micro-batches had no backward call, so that the current one is unclear."""
        if self.idle:
            raise UpdateError(
                f"{what}: the loop is at micro-batch {self.micro_batches}, but {self.idle} of the earlier ones had "
                "no backward call. If list(...) or a prefetcher drew them early, this call belongs to another "
                "micro-batch. Loop over update.micro_batches(...) itself, and prefetch inside: "
                "update.micro_batches(prefetch(window)). If they were skipped, pass count=0 for each. Name each "
                "loss if a micro-batch has several."
            )

    def start_loop(self) -> None:
        if self.in_loop:
            raise UpdateError(
                "micro_batches: this update was already given its micro-batches. One update is one window; "
                "pass the whole window at once, for example itertools.chain(labelled, unlabelled)."
            )
        self.in_loop = True

    def name(self, given: str | None) -> str:
        """Return the given name, or one made from the loss's position in the micro-batch."""
        if given is not None:
            return given
        if self.calls and not self.in_loop:
            raise UpdateError(
                "backward: a second call without a name, outside update.micro_batches(...), may be another "
                "micro-batch (averaged with the first) or another loss (added to the first mean). Loop over "
                "`update.micro_batches(window)`, or name each loss: name='fake'."
            )
        self.unnamed += 1
        if self.unnamed > 1 and self.unnamed > self.usual:
            self.refuse_idle("backward")
        return "loss" if self.unnamed == 1 else f"loss {self.unnamed}"

    def check_losses(self) -> None:
        """Raise UpdateError if micro-batches have different numbers of unnamed losses."""
        if self.usual and self.unnamed and self.unnamed != self.usual:
            raise UpdateError(
                f"backward: micro-batch {self.micro_batches} had {self.unnamed} unnamed losses, but earlier "
                f"micro-batches had {self.usual}. Unnamed losses are matched by their order, so a missing "
                "loss would be mistaken for another. Name each loss: update.backward(loss, name='auxiliary')."
            )
        self.usual = self.usual or self.unnamed
