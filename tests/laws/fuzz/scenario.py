"""The description of one training loop: plain values, which print as the line that makes them again."""

import dataclasses
from dataclasses import dataclass

Sizes = tuple[tuple[int, ...], ...]


class _Brief:
    """Prints only what differs from the defaults, so that a failure reads as one line."""

    def __repr__(self) -> str:
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        shown = [f"{f.name}={getattr(self, f.name)!r}" for f in fields if getattr(self, f.name) != f.default]
        return f"{type(self).__name__}({', '.join(shown)})"


@dataclass(frozen=True, repr=False)
class Window(_Brief):
    """One update, and what the loop does before it and within it."""

    sizes: Sizes  # for each rank the samples of each micro-batch
    way: str = "loop"
    before: str = "nothing"
    within: str = "nothing"


@dataclass(frozen=True, repr=False)
class Scenario(_Brief):
    """One loop: every field is a name in a table of this package."""

    windows: tuple[Window, ...]
    model: str = "norm"
    losses: tuple[str, ...] = ("cross entropy",)
    layout: str = "dict"
    gate: str = "none"
    wrapper: str = "none"
    optimizer: str = "momentum"
    clip: str = "none"
    clear: str = "none"
    nonfinite: str = "raise"
    sync: str = "last"
    schedule: bool = False
    scaler: bool = False
    undo_step: bool = False
    given_model: bool = True
    late_head: bool = False  # its parameters come to the optimizer by add_param_group
    named: bool = True  # several losses have names
    into: bool = False  # the second loss goes into the head alone
    left_padding: bool = False
    spoiled: str = ""  # what keeps any split from being exact, and is told
    seed: int = 0

    @property
    def ranks(self) -> int:
        return len(self.windows[0].sizes)
