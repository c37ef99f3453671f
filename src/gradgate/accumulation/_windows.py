"""Cut a loader's micro-batches into windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Generic, TypeVar, overload

from torch import Tensor

from gradgate.batch_layout import looks_like_batch
from gradgate.errors import OptionError, UpdateError

T = TypeVar("T")


class _Gone:
    """Stands where a micro-batch was."""


_GONE = _Gone()


class Window(Sequence[T]):
    """The micro-batches between two steps: a list that is drawn from the loader as it is read.

    So the first micro-batch can be computed while the loader prepares the next. A window can be gone through
    again, but for what ``update.micro_batches(window)`` has handed out: that is let go of, one by one, so
    that no more inputs stay alive than in a plain loop. Asking for the length draws all of it.
    """

    def __init__(self, source: Iterator[T], size: int, first: T, expected: int) -> None:
        self._source = source
        self._size = size
        self._items: list[T | _Gone] = [first]
        self.expected = expected
        """How many micro-batches will come, as far as the loader tells; at most the size asked for."""

    def drain(self) -> Iterator[T]:
        """Yield the micro-batches and let go of each."""
        number = 0
        while number < len(self._items) or self._draw():
            item, self._items[number] = self._there(self._items[number]), _GONE
            yield item
            del item
            number += 1

    def _there(self, item: T | _Gone) -> T:
        if isinstance(item, _Gone):
            raise UpdateError(
                "windows: this window's micro-batches were handed out by update.micro_batches(window) and let go "
                "of. To go through them again, make a list first: window = list(window)."
            )
        return item

    def fill(self) -> None:
        """Draw the rest of the window."""
        while self._draw():
            pass

    def _draw(self) -> bool:
        if len(self._items) < self._size:
            for item in self._source:
                self._items.append(item)
                return True
            self._size = len(self._items)
        return False

    def __len__(self) -> int:
        self.fill()
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | Sequence[T]:
        self.fill()
        found = self._items[index]
        return [self._there(item) for item in found] if isinstance(found, list) else self._there(found)

    def __iter__(self) -> Iterator[T]:
        number = 0
        while number < len(self._items) or self._draw():
            yield self._there(self._items[number])
            number += 1


class Windows(Iterable[Window[T]], Generic[T]):
    """The windows of a loader, anew each time they are gone through. Made by :func:`windows`."""

    def __init__(self, loader: Iterable[T], size: int, progress: bool) -> None:
        self._loader = loader
        self._size = size
        self._progress = progress

    def __len__(self) -> int:
        """How many updates an epoch makes, the last, shorter one included."""
        if not isinstance(self._loader, Sized):
            raise TypeError(
                f"windows: a {type(self._loader).__name__} has no length, so neither have its windows."
            )
        return math.ceil(len(self._loader) / self._size)

    def __iter__(self) -> Iterator[Window[T]]:
        loader = _with_progress(self._loader, self._size) if self._progress else self._loader
        left = _length(self._loader)
        source = iter(loader)
        for first in source:
            expected = self._size if left is None else max(1, min(self._size, left))
            window = Window(source, self._size, first, expected)
            yield window
            window.fill()  # what was left unread belongs to this window, not to the next one
            left = None if left is None else left - len(window)


def windows(loader: Iterable[T], size: int, *, progress: bool = False) -> Windows[T]:
    """Cut what a loader yields into windows of ``size`` micro-batches each, one for every update.

    The last window may be shorter. Nothing is dropped and nothing leaks into the next epoch.

    Args:
        loader: yields micro-batches: a ``DataLoader``, a list, a generator.
        size: micro-batches in a window, ``>= 1``.
        progress: show a progress bar over the micro-batches (needs ``tqdm``: ``pip install
            'gradgate[progress]'``).

    Returns:
        an iterable of windows, and each window a sequence of micro-batches. It can be gone through once
        per epoch if the loader can. Its length is the number of updates of an epoch.

    Raises:
        OptionError: ``size`` is not a whole number of at least 1.

    Example:
        >>> [list(window) for window in windows([1, 2, 3, 4, 5], size=2)]
        [[1, 2], [3, 4], [5]]
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise OptionError(
            f"windows: size is {size!r}; a window holds a whole number of micro-batches, at least 1."
        )
    return Windows(loader, size, progress)


def _length(loader: Iterable[object]) -> int | None:
    """Return a loader's length where it has one. An IterableDataset's loader may raise TypeError."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except TypeError:
        return None


def check_window(window: Iterable[object], verb: str) -> None:
    """Raise OptionError for one batch in place of a sequence of micro-batches."""
    if isinstance(window, (Tensor, Mapping, str)):
        raise OptionError(
            f"{verb}: a window is a sequence of micro-batches, this is one {type(window).__name__}. Pass a "
            "list, [batch], or split it: batch.split(32); a stack of micro-batches is stack.unbind()."
        )
    if looks_like_batch(window):
        raise OptionError(
            f"{verb}: a window is a sequence of micro-batches, and these tensors look like the fields of one "
            "batch: as many samples in each, of different kinds. Pass a list, [batch], or call "
            "accumulator.step(loss_fn, batch)."
        )


def micro_batches_of(window: Iterable[T]) -> Iterator[T]:
    """Return an iterator over a window that keeps nothing alive that it need not."""
    check_window(window, "micro_batches")
    return window.drain() if isinstance(window, Window) else iter(window)


def expected_length(window: Iterable[object]) -> int:
    """Return how many micro-batches an iterable will give, as far as it tells, without drawing any; else 1."""
    if isinstance(window, Window):
        return window.expected
    return max(_length(window) or 1, 1)


def _with_progress(loader: Iterable[T], size: int) -> Iterable[T]:
    try:
        from tqdm.auto import tqdm
    except ImportError as error:
        raise OptionError(
            "windows: progress=True needs tqdm, which is not installed. Run pip install 'gradgate[progress]', "
            "or leave progress out."
        ) from error
    bar: Iterable[T] = tqdm(loader, unit="micro-batch", desc=f"windows of {size}", total=_length(loader))
    return bar
