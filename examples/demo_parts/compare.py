"""Train one task in three ways, and compare the runs."""

from dataclasses import dataclass

import torch
from rich.console import Console

from .measure import Run, distances, train
from .progress import progress
from .task import Task
from .ways import by_hand, whole_batch, with_gradgate

# Adam divides each entry of the gradient by its own size. An entry that is 10,000 times smaller than the largest
# has a relative rounding error that is 10,000 times larger.
AMPLIFIED = 1e4


@dataclass(frozen=True)
class Comparison:
    """The three runs of one task, and the distances of two of them to the first."""

    task: Task
    whole: Run
    gradgate: Run
    by_hand: Run
    gradgate_distance: list[float]  # after each update, see measure.distances
    by_hand_distance: list[float]

    @property
    def rounding(self) -> float:
        """The largest distance that the rounding of this dtype explains."""
        return AMPLIFIED * torch.finfo(self.whole.parameters[0].dtype).eps

    @property
    def exact(self) -> bool:
        """Whether gradgate stayed within rounding of the whole batch, from the first update on."""
        return all(distance <= self.rounding for distance in self.gradgate_distance)  # nan is not

    def after_epochs(self, distance: list[float]) -> list[float]:
        """Select the distances at the end of each epoch."""
        return distance[self.task.updates_per_epoch - 1 :: self.task.updates_per_epoch]


def compare(task: Task, console: Console) -> Comparison:
    """Train the task in all three ways, and show progress."""
    console.print(f"\n[bold]{task.name}[/]: {task.about}")
    runs: list[Run] = []
    for name, way in (("whole batch", whole_batch), ("gradgate", with_gradgate), ("by hand", by_hand)):
        with progress(console, task, name) as on_update:
            runs.append(train(way, task, on_update))
    whole, gradgate, hand = runs
    return Comparison(task, whole, gradgate, hand, distances(gradgate, whole), distances(hand, whole))
