"""What happened to which gradient, when: plain records that can be saved, read again and judged without torch.

A :class:`Log` is one process's run: a table of parameters, and events in the order in which they happened.
Parameters and optimizers stand in events as small numbers. A :data:`Site` is where the user's code was: its
frames, the innermost first; frames of torch and of other libraries are left out.
"""

from gradgate.events._around import (
    Ended,
    EpochEnded,
    EpochStarted,
    Gap,
    Planned,
    Reduced,
    Scaled,
    ScalerMade,
    ScalerStepped,
    ScalerUpdated,
    Scheduled,
    SchedulerMade,
    Sharded,
    Unscaled,
)
from gradgate.events._forward import Cut, GraphsKept, ModeSet, NoGradEntered, Ran, StatisticsMoved
from gradgate.events._gradients import (
    Backward,
    Cleared,
    Clipped,
    Differentiated,
    NonfiniteMade,
    Opposed,
    OptimizerMade,
    StateLoaded,
    Stepped,
    Written,
)
from gradgate.events._json import EVENTS, from_json, to_json
from gradgate.events._log import Log
from gradgate.events._on_purpose import is_on_purpose, on_purpose
from gradgate.events._places import Event, Frame, Group, Ids, Parameter, Site, Term
from gradgate.events._spans import Doing, Span
from gradgate.events._tell import listeners, tell

__all__ = [
    "EVENTS",
    "Backward",
    "Cleared",
    "Clipped",
    "Cut",
    "Differentiated",
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
    "ModeSet",
    "NoGradEntered",
    "NonfiniteMade",
    "Opposed",
    "OptimizerMade",
    "Parameter",
    "Planned",
    "Ran",
    "Reduced",
    "Scaled",
    "ScalerMade",
    "ScalerStepped",
    "ScalerUpdated",
    "Scheduled",
    "SchedulerMade",
    "Sharded",
    "Site",
    "Span",
    "StateLoaded",
    "StatisticsMoved",
    "Stepped",
    "Term",
    "Unscaled",
    "Written",
    "from_json",
    "is_on_purpose",
    "listeners",
    "on_purpose",
    "tell",
    "to_json",
]
