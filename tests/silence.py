"""For tests of what is not warned of."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_warning() -> Iterator[None]:
    """Make every warning in the block an error, whatever the suite does with warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
