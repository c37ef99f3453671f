"""Groups the micro-batches of a loader into windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from operator import length_hint
from typing import Any, Generic, TypeVar, overload

from gradgate.errors import OptionError, UpdateError

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

    def __init__(self, loader: Iterable[T], size: int) -> None:
        self._loader = loader
        self._size = size

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
        left = length_hint(self._loader, -1)  # -1: unknown
        source = iter(self._loader)
        for first in source:
            expected = self._size if left < 0 else max(1, min(self._size, left))
            window = Window(source, self._size, first, expected)
            yield window
            drawn = len(window)  # unread micro-batches belong to this window, not to the next one
            left = left if left < 0 else max(0, left - drawn)


def windows(loader: Iterable[T], size: int) -> Windows[T]:
    """Group the micro-batches of a loader into windows of ``size``, one window per update.

    The last window may be shorter. Nothing is dropped and nothing leaks into the next epoch.

    Args:
        loader: yields micro-batches: a ``DataLoader``, a list, a generator.
        size: the number of micro-batches in a window, ``>= 1``.

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
    return Windows(loader, size)
