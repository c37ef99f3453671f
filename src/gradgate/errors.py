"""All errors and warnings of gradgate.

::

    GradgateError
    ├── ShapeError        (ValueError)    a tensor has a shape that cannot be used
    ├── CountError        (ValueError)    a count is missing, negative, or zero for a whole window
    ├── OptionError       (ValueError)    options that are out of range or exclude each other
    ├── GraphError        (RuntimeError)  a loss has no graph, or reaches nothing that is owned
    ├── GradientError     (RuntimeError)  a gradient stands in `.grad` that nobody accounts for
    ├── OwnerError        (RuntimeError)  two open updates claim the same parameter
    ├── RankError         (RuntimeError)  several ranks train together
    ├── UpdateError       (RuntimeError)  an update is used at the wrong moment
    ├── NonfiniteError    (ArithmeticError)  the gradient of a window is infinite or not a number
    ├── BudgetError       (MemoryError)   one sample alone does not fit into memory
    ├── StateError        (ValueError)    a saved state does not belong to this accumulator
    ├── FindingError      (AssertionError)  a watched loop shows mistakes
    ├── FlowError         (AssertionError)  a loss reaches what it should not, or not what it should
    └── TornStepError     (RuntimeError)  an optimizer raised in the middle of its step

    GradgateWarning (UserWarning)
    ├── BatchNormWarning                  a window's batch norm differs from the whole batch's
    ├── CountWarning                      counts are out of proportion to what the losses' graphs know
    ├── CoupledLossWarning                a loss compares the items of a micro-batch with one another
    ├── EstimateWarning                   what a plan estimates is uncertain, or it left something behind
    └── DividedTwiceWarning               a loss was already divided by the number of micro-batches

Each message says where, what was found, why it cannot go on, and what to write instead.
"""


class GradgateError(Exception):
    """Base of every error that gradgate raises on its own account."""


class ShapeError(GradgateError, ValueError):
    """A tensor has a shape that cannot be used."""


class CountError(GradgateError, ValueError):
    """A count is missing, negative, or zero for a whole window."""


class OptionError(GradgateError, ValueError):
    """An option is out of range, or two options exclude each other."""


class GraphError(GradgateError, RuntimeError):
    """A loss has no graph, or its graph reaches no parameter that the update owns."""


class GradientError(GradgateError, RuntimeError):
    """A gradient stands in ``.grad`` that the accumulator did not put there."""


class OwnerError(GradgateError, RuntimeError):
    """Two open updates claim the same parameter."""


class RankError(GradgateError, RuntimeError):
    """Several ranks train together in a way that cannot be summed."""


class UpdateError(GradgateError, RuntimeError):
    """An update is used at the wrong moment: twice, too late, or ambiguously."""


class NonfiniteError(GradgateError, ArithmeticError):
    """The gradient of a window is infinite or not a number."""


class BudgetError(GradgateError, MemoryError):
    """One sample alone does not fit into memory."""


class StateError(GradgateError, ValueError):
    """A saved state does not belong to this accumulator."""


class FindingError(GradgateError, AssertionError):
    """A loop that was watched shows mistakes of the severity that was asked to raise."""


class FlowError(GradgateError, AssertionError):
    """A loss reaches what it should not, or does not reach what it should."""


class TornStepError(GradgateError, RuntimeError):
    """An optimizer raised in the middle of its step and left parameters half changed."""


class GradgateWarning(UserWarning):
    """Base of every warning that gradgate gives."""


class CountWarning(GradgateWarning):
    """Counts are out of proportion to the items that the losses were taken over."""


class DividedTwiceWarning(GradgateWarning):
    """A loss comes divided by the number of micro-batches, and the update divides by their counts."""


class BatchNormWarning(GradgateWarning):
    """A batch norm sees one micro-batch at a time, so no cut gives the whole batch's gradient."""


class CoupledLossWarning(GradgateWarning):
    """A loss compares the items of a micro-batch with one another, so no split gives the whole batch's gradient."""


class EstimateWarning(GradgateWarning):
    """An estimate of memory is uncertain, or left fake tensors where it could not undo it."""
