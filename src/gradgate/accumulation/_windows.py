"""Group a loader's micro-batches into windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Generic, TypeVar, overload

from gradgate.accumulation._running_sum import length_of
from gradgate.errors import OptionError, UpdateError

T = TypeVar("T")


class _Released:
    """Marks a micro-batch that was handed out and let go of."""


_RELEASED = _Released()


class Window(Sequence[T]):
    """The micro-batches between two steps: a list that is drawn from the loader as it is read.

    So the first micro-batch can be computed while the loader prepares the next. A window can be iterated over
    again, except for what ``update.micro_batches(window)`` has handed out: each of those is released, so that no
    more inputs stay alive than in a plain loop. Asking for the length draws all of it.
    """

    def __init__(self, source: Iterator[T], size: int, first: T, expected: int) -> None:
        self._source = source
        self._size = size
        self._items: list[T | _Released] = [first]
        self.expected = expected
        """How many micro-batches will come, as far as the loader tells; at most the size asked for."""

    def drain(self) -> Iterator[T]:
        """Yield the micro-batches and let go of each."""
        number = 0
        while number < len(self._items) or self._draw():
            item, self._items[number] = self._present(self._items[number]), _RELEASED
            yield item
            del item
            number += 1

    def _present(self, item: T | _Released) -> T:
        if isinstance(item, _Released):
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

    def __repr__(self) -> str:
        return f"Window({len(self._items)} of {self._size} micro-batches drawn)"

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
        return [self._present(item) for item in found] if isinstance(found, list) else self._present(found)

    def __iter__(self) -> Iterator[T]:
        number = 0
        while number < len(self._items) or self._draw():
            yield self._present(self._items[number])
            number += 1


class Windows(Iterable[Window[T]], Generic[T]):
    """The windows of a loader, anew each time they are iterated over. Made by :func:`windows`."""

    def __init__(self, loader: Iterable[T], size: int, progress: bool) -> None:
        self._loader = loader
        self._size = size
        self._progress = progress

    def __repr__(self) -> str:
        return f"windows({type(self._loader).__name__}, size={self._size})"

    def __len__(self) -> int:
        """How many updates an epoch makes, the last, shorter one included."""
        if not isinstance(self._loader, Sized):
            raise TypeError(
                f"windows: a {type(self._loader).__name__} has no length, so neither have its windows."
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
            window.fill()  # what was left unread belongs to this window, not to the next one
            left = None if left is None else left - len(window)


def windows(loader: Iterable[T], size: int, *, progress: bool = False) -> Windows[T]:
    """Group what a loader yields into windows of ``size`` micro-batches each, one for every update.

    The last window may be shorter. Nothing is dropped and nothing leaks into the next epoch.

    Args:
        loader: yields micro-batches: a ``DataLoader``, a list, a generator.
        size: micro-batches in a window, ``>= 1``.
        progress: show a progress bar over the micro-batches (needs ``tqdm``: ``pip install
            'gradgate[progress]'``).

    Returns:
        an iterable of windows, and each window a sequence of micro-batches. It can be iterated over once
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
