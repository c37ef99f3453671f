"""Groups the micro-batches of a loader into windows, and splits them when memory runs out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Generic, Literal, TypeAlias, TypeVar, overload

from gradgate.accumulation._calls import length_of
from gradgate.accumulation._open_window import TrainingState
from gradgate.batch_layout import BatchDim, Layout, NotGiven, layout_of
from gradgate.errors import BudgetError, OptionError, UpdateError
from gradgate.ranks import ALONE, SingleProcess

T = TypeVar("T")


_RELEASED: Any = object()
"""Marks a micro-batch that was yielded and released."""


class Window(Sequence[T]):
    """The micro-batches between two steps: a sequence that is drawn from the loader lazily.

    The first micro-batch can be computed while the loader prepares the next. A window can be iterated over again,
    except for micro-batches that ``update.micro_batches(window)`` has yielded: these are released, so that inputs
    do not stay alive longer than in a plain loop. ``len()`` draws the whole window.
    """

    def __init__(self, source: Iterator[T], size: int, first: T, expected: int) -> None:
        self._source = source
        self._size = size
        self._items: list[T] = [first]
        self.expected = expected
        """The expected number of micro-batches, from the loader's length if it has one; at most the window size."""

    def drain(self) -> Iterator[T]:
        """Yield the micro-batches and release each."""
        number = 0
        while number < len(self._items) or self._draw():
            item, self._items[number] = self._present(self._items[number]), _RELEASED
            yield item
            del item
            number += 1

    def _present(self, item: T) -> T:
        if item is _RELEASED:
            raise UpdateError(
                "windows: update.micro_batches(window) has yielded and released this window's micro-batches. "
                "To iterate over them again, make a list first: window = list(window)."
            )
        return item

    def _draw(self) -> bool:
        if len(self._items) < self._size:
            for item in self._source:
                self._items.append(item)
                return True
            self._size = len(self._items)
        return False

    def __repr__(self) -> str:
        return f"Window({len(self._items)} of {self._size} micro-batches drawn)"

    def __len__(self) -> int:
        while self._draw():
            pass
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        len(self)  # draws the whole window
        found = self._items[index]
        return [self._present(item) for item in found] if isinstance(found, list) else self._present(found)

    def __iter__(self) -> Iterator[T]:
        number = 0
        while number < len(self._items) or self._draw():
            yield self._present(self._items[number])
            number += 1


class Windows(Iterable[Window[T]], Generic[T]):
    """The windows of a loader. Can be iterated over again if the loader can. Made by :func:`windows`."""

    def __init__(self, loader: Iterable[T], size: int, progress: bool) -> None:
        self._loader = loader
        self._size = size
        self._progress = progress

    def __repr__(self) -> str:
        return f"windows({type(self._loader).__name__}, size={self._size})"

    def __len__(self) -> int:
        """The number of updates in an epoch, including the last, shorter one."""
        if not isinstance(self._loader, Sized):
            raise TypeError(
                f"windows: a {type(self._loader).__name__} has no length, so its windows have none either."
            )
        return math.ceil(len(self._loader) / self._size)

    def __iter__(self) -> Iterator[Window[T]]:
        loader = _with_progress(self._loader, self._size) if self._progress else self._loader
        left = length_of(self._loader)
        source = iter(loader)
        for first in source:
            expected = self._size if left is None else max(1, min(self._size, left))
            window = Window(source, self._size, first, expected)
            yield window
            drawn = len(window)  # unread micro-batches belong to this window, not to the next one
            left = None if left is None else left - drawn


def windows(loader: Iterable[T], size: int, *, progress: bool = False) -> Windows[T]:
    """Group the micro-batches of a loader into windows of ``size``, one window per update.

    The last window may be shorter. Nothing is dropped and nothing leaks into the next epoch.

    Args:
        loader: yields micro-batches: a ``DataLoader``, a list, a generator.
        size: the number of micro-batches in a window, ``>= 1``.
        progress: show a progress bar over the micro-batches (needs ``tqdm``: ``pip install
            'gradgate[progress]'``).

    Returns:
        an iterable of windows, each a sequence of micro-batches. It can be iterated over once per epoch if the
        loader can. Its length is the number of updates in an epoch.

    Raises:
        OptionError: ``size`` is not an integer of at least 1.

    Example:
        >>> [list(window) for window in windows([1, 2, 3, 4, 5], size=2)]
        [[1, 2], [3, 4], [5]]
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise OptionError(
            f"windows: size is {size!r}; it must be an integer of at least 1, the number of micro-batches in a "
            "window."
        )
    return Windows(loader, size, progress)


def _with_progress(loader: Iterable[T], size: int) -> Iterable[T]:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise OptionError(
            "windows: progress=True needs tqdm, which is not installed. Run pip install 'gradgate[progress]', "
            "or leave progress out."
        ) from error
    bar: Iterable[T] = tqdm(loader, unit="micro-batch", desc=f"windows of {size}", total=length_of(loader))
    return bar


Dealt: TypeAlias = Literal["whole", "parts"]
"""Whether each rank passes the whole batch or only its own part, to be redistributed over ranks."""


class GivenMicroBatches:
    """The caller's micro-batches, split further if they do not fit."""

    def __init__(
        self, state: TrainingState, micro_batches: Sequence[Any], batch_dim: BatchDim | NotGiven
    ) -> None:
        self._state, self._batch_dim = state, batch_dim
        # The saved count refers to split micro-batches, so split before skipping that many.
        keep = _kept(state)
        pieces = self._split(micro_batches) if keep else []
        self._kept = pieces[:keep]
        self._rest = [data for data, _ in pieces[keep:]] if keep else micro_batches
        self._pieces: list[tuple[Any, int | None]] = []

    def pieces(self) -> Sequence[Any]:
        """Return the micro-batches, split to the size that fits."""
        self._pieces = [*self._kept, *self._split(self._rest)]
        return [data for data, _ in self._pieces]

    def ran_out(self, index: int, error: BaseException) -> str:
        """Halve the size of micro-batches; return what to log."""
        data, samples = self._pieces[index]
        if samples is None:
            try:
                samples = self._layout(data).samples
            except OptionError as unreadable:
                raise BudgetError(
                    f"step: memory ran out ({first_line(error)}), and this micro-batch cannot be split: "
                    f"{str(unreadable).removeprefix('split: ')} Or pass smaller micro-batches. No step was made."
                ) from error
        if samples == 1:
            raise _one_sample_alone(self._layout(data), error) from error
        self._state.samples_that_fit = fits = (samples + 1) // 2
        return f"{samples} samples; replaying the window with {fits}"

    def _layout(self, data: Any) -> Layout:
        return layout_of(data, self._batch_dim)

    def _split(self, micro_batches: Sequence[Any]) -> list[tuple[Any, int | None]]:
        """Split micro-batches that are too large into equal parts; return the parts with their sample counts."""
        most = self._state.samples_that_fit
        if most is None:
            return [(micro_batch, None) for micro_batch in micro_batches]
        return [piece for micro_batch in micro_batches for piece in self._split_to(micro_batch, most)]

    def _split_to(self, micro_batch: Any, most: int) -> list[tuple[Any, int | None]]:
        try:
            layout = self._layout(micro_batch)
        except OptionError:  # it may fit unsplit; otherwise this error is raised when memory runs out
            return [(micro_batch, None)]
        if layout.samples <= most:
            return [(micro_batch, layout.samples)]
        return list(layout.split(micro_batch, -(-layout.samples // most)))


class PlannedMicroBatches:
    """The micro-batches of a plan. If some do not fit, the plan splits the rest of the batch into smaller ones.

    ``dealt`` says whether each rank passes the whole batch or its own part. If None, each keeps its own samples.
    """

    def __init__(
        self,
        state: TrainingState,
        plan: Any,
        batch: Any,
        dealt: Dealt | None,
        coordinator: SingleProcess,
    ) -> None:
        self._plan = plan
        self._keep = _kept(state)
        if dealt is None or coordinator is ALONE:
            self._split = plan.split(batch, rank=0, ranks=1)
            return
        whole = batch if dealt == "whole" else plan.pool(coordinator.gather_objects(batch))
        self._split = plan.split(whole, rank=coordinator.rank, ranks=coordinator.count)

    def pieces(self) -> Sequence[Any]:
        """Return the micro-batches of the plan."""
        return _LazyData(self._split)

    def ran_out(self, index: int, error: BaseException) -> str:
        """Let the plan split the rest into smaller micro-batches; return what to log."""
        samples = len(self._split[index].indices)
        if samples == 1:
            raise _one_sample_alone(self._split.samples.layout, error) from error
        self._split = self._plan.finer(self._split, index, keep=self._keep)
        return f"{samples} samples, which the plan had estimated to fit; replaying the window with fewer"


class _LazyData(Sequence[Any]):
    """The data of micro-batches, each assembled on access."""

    def __init__(self, micro_batches: Sequence[Any]) -> None:
        self._micro_batches = micro_batches

    def __len__(self) -> int:
        return len(self._micro_batches)

    def __getitem__(self, index: Any) -> Any:
        found = self._micro_batches[index]
        return _LazyData(found) if isinstance(index, slice) else found.data


def _kept(state: TrainingState) -> int:
    """Return how many micro-batches are already in the sum of a saved window."""
    return state.unfinished["micro_batches"] if state.unfinished is not None else 0


def _one_sample_alone(layout: Layout, error: BaseException) -> BudgetError:
    return BudgetError(
        f"step: one sample alone runs out of memory ({first_line(error)}). A batch cannot be split below one "
        "sample: shorten the sample, recompute activations (torch.utils.checkpoint), or free memory elsewhere. "
        f"Samples were counted {layout.where()}; if they are elsewhere, pass batch_dim=. No step was made."
    )


def first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
