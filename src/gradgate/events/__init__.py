"""Records of what happened to which gradient, and when. They can be pickled, and judged without torch.

A :class:`Log` is one process's run: a table of parameters, and events in the order in which they happened. Events
refer to parameters, optimizers, schedulers and loaders by number. A :data:`Site` is a position in the user's code:
its frames, innermost first, without the frames of torch and other libraries.

Each field is declared once, with its type and meaning. The table in docs/reference/rules_and_events.md follows from
these declarations.
"""

from gradgate.events._cells import Cell, cell_of
from gradgate.events._forward import (
    GraphsKept,
    ModeSet,
    NoGradEntered,
    StatisticsMoved,
)
from gradgate.events._gradients import (
    Backward,
    Cleared,
    Clipped,
    Combined,
    Differentiated,
    DividedTwice,
    Miscounted,
    ModelLoaded,
    NonfiniteMade,
    Opposed,
    OptimizerMade,
    StateLoaded,
    Stepped,
    Written,
)
from gradgate.events._listening import emit, is_on_purpose, listeners, on_purpose
from gradgate.events._loop import (
    Ended,
    EpochEnded,
    EpochStarted,
    Gap,
    Reduced,
    ScalerUsed,
    Scheduled,
    SchedulerMade,
    Sharded,
    Wrapped,
)
from gradgate.events._records import (
    Doing,
    Event,
    Frame,
    Group,
    Ids,
    Log,
    Parameter,
    Read,
    Site,
    Span,
    Term,
    Value,
    Values,
)

__all__ = [
    "Backward",
    "Cell",
    "Cleared",
    "Clipped",
    "Combined",
    "Differentiated",
    "DividedTwice",
    "Doing",
    "Ended",
    "EpochEnded",
    "EpochStarted",
    "Event",
    "Frame",
    "Gap",
    "GraphsKept",
    "Group",
    "Ids",
    "Log",
    "Miscounted",
    "ModeSet",
    "ModelLoaded",
    "NoGradEntered",
    "NonfiniteMade",
    "Opposed",
    "OptimizerMade",
    "Parameter",
    "Read",
    "Reduced",
    "ScalerUsed",
    "Scheduled",
    "SchedulerMade",
    "Sharded",
    "Site",
    "Span",
    "StateLoaded",
    "StatisticsMoved",
    "Stepped",
    "Term",
    "Value",
    "Values",
    "Wrapped",
    "Written",
    "cell_of",
    "emit",
    "is_on_purpose",
    "listeners",
    "on_purpose",
]
