"""All errors and warnings of gradgate.

::

    GradgateError
    ├── ShapeError        (ValueError)       a tensor has the wrong shape
    ├── CountError        (ValueError)       a count is missing, negative, or zero for a whole window
    ├── OptionError       (ValueError)       an option is out of range, or two options exclude each other
    ├── StateError        (ValueError)       a saved state does not belong to this accumulator
    ├── GraphError        (RuntimeError)     a loss has no graph, or reaches no owned parameter
    ├── GradientError     (RuntimeError)     `.grad` holds a gradient that the accumulator did not put there
    ├── OwnerError        (RuntimeError)     two open updates claim the same parameter
    ├── RankError         (RuntimeError)     the ranks' gradients cannot be summed
    ├── UpdateError       (RuntimeError)     an update is used at the wrong time
    ├── TornStepError     (RuntimeError)     an optimizer raised in the middle of its step
    ├── NonfiniteError    (ArithmeticError)  the gradient of a window is infinite or not a number
    ├── BudgetError       (MemoryError)      a single sample does not fit into memory
    ├── FindingError      (AssertionError)   a watched loop has mistakes
    └── FlowError         (AssertionError)   a loss reaches an unwanted parameter, or misses a wanted one

    GradgateWarning       (UserWarning)
    ├── BatchNormWarning                     a window's batch norm differs from the whole batch's
    ├── CountWarning                         counts do not match the items that the losses' graphs show
    ├── CoupledLossWarning                   a loss or a model couples items, or a hook clips each micro-batch
    ├── DividedTwiceWarning                  a loss was already divided by the number of micro-batches or items
    └── EstimateWarning                      a plan's estimate is uncertain, or left fake tensors behind

Each message gives the place, the problem, its consequence, and the fix.
"""

from __future__ import annotations


class GradgateError(Exception):
    """Base class of all errors that gradgate raises."""


class ShapeError(GradgateError, ValueError):
    """A tensor has the wrong shape."""


class CountError(GradgateError, ValueError):
    """A count is missing, negative, or zero for a whole window."""


class OptionError(GradgateError, ValueError):
    """An option is out of range, or two options exclude each other."""


class GraphError(GradgateError, RuntimeError):
    """A loss has no graph, or its graph reaches no parameter that the update owns."""


class GradientError(GradgateError, RuntimeError):
    """``.grad`` holds a gradient that the accumulator did not put there."""


class OwnerError(GradgateError, RuntimeError):
    """Two open updates claim the same parameter."""


class RankError(GradgateError, RuntimeError):
    """The ranks' gradients cannot be summed."""


class UpdateError(GradgateError, RuntimeError):
    """An update is used at the wrong time, used twice, or used after it has ended."""


class NonfiniteError(GradgateError, ArithmeticError):
    """The gradient of a window is infinite or not a number."""


class BudgetError(GradgateError, MemoryError):
    """A single sample does not fit into memory."""


class StateError(GradgateError, ValueError):
    """A saved state does not belong to this accumulator."""


class FindingError(GradgateError, AssertionError):
    """A watched loop has mistakes that are at least as severe as ``raise_on``."""


class FlowError(GradgateError, AssertionError):
    """A loss reaches an unwanted parameter, or misses a wanted one."""


class TornStepError(GradgateError, RuntimeError):
    """An optimizer raised in the middle of its step and left parameters partly changed."""


class GradgateWarning(UserWarning):
    """Base class of all warnings that gradgate issues."""


class CountWarning(GradgateWarning):
    """Counts do not match the number of items in the losses."""


class DividedTwiceWarning(GradgateWarning):
    """A loss is already divided by the number of micro-batches or items, and the update divides it again."""


class BatchNormWarning(GradgateWarning):
    """A batch norm sees one micro-batch at a time, so no split gives the whole batch's gradient."""


class CoupledLossWarning(GradgateWarning):
    """No split is exact: a loss or model couples the items of a micro-batch, or a hook or gate clips its gradient.

    A loss couples items if it compares them, or if it is a function of their mean.
    """


class EstimateWarning(GradgateWarning):
    """A memory estimate is uncertain, or it left behind fake tensors that could not be removed."""
