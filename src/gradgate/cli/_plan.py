"""``gradgate plan``: run a script up to its first optimizer step, and plan the batch of that step."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from gradgate.byte_sizes import as_bytes, format_bytes
from gradgate.checker.analysis._loss_source import LossSource, UnknownLossError, loss_source
from gradgate.checker.reports import counted, place_of
from gradgate.checker.running import How, Program, WatchedRun, after_import
from gradgate.cli._arguments import program_of
from gradgate.errors import GradgateError
from gradgate.events import Frame, Log

_WHERE = "gradgate plan"
_CALL = """\
In {script}, write the loss as a function and call gg.plan:

    import gradgate as gg

    def loss_fn(batch):
        ...                       # compute the loss from a batch
        return loss

    print(gg.plan(loss_fn, batch, {budget}optimizer={optimizer}))

docs/plan.md lists the kinds of batches that are supported.
"""


def plan_program(module: str | None, arguments: list[str], *, budget: str | None) -> int:
    """Run a program up to its first optimizer step, print a plan for its batch, and return the exit code."""
    program = program_of(module, arguments, where=_WHERE)
    if budget is not None:
        as_bytes(budget, _WHERE, "--budget")
    paused = _Paused(program, budget)
    after_import("torch", paused.wait_for_step)
    return WatchedRun(program, max_steps=1, on_end=paused.tell).run()


class _Paused:
    """A script that is about to make its first optimizer step."""

    def __init__(self, program: Program, budget: str | None) -> None:
        self._program, self._budget = program, budget
        # frame -> line that calls a module -> length of the first tensor passed to the module
        self._forwards: dict[Any, dict[int, int]] = defaultdict(dict)
        self._optimizer = "optimizer"
        self._answer: tuple[str, int] | None = None  # the plan or an error, and the exit code

    def wait_for_step(self) -> None:
        """Register hooks: modules note the lines that call them, and the first optimizer step makes the plan."""
        from torch.nn.modules.module import register_module_forward_pre_hook
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._hooks = (
            register_module_forward_pre_hook(self._called),
            register_optimizer_step_pre_hook(self._steps),
        )

    def _called(self, _: Any, inputs: Any) -> None:
        import torch

        from gradgate.call_sites import user_frames
        from gradgate.pytree import tensors_in

        if torch.is_grad_enabled():
            length = next((len(each) for each in tensors_in(inputs) if each.ndim), 0)
            for frame in user_frames():
                self._forwards[frame].setdefault(frame.f_lineno, length)

    def _steps(self, optimizer: Any, *_: Any) -> None:
        from gradgate.checker.recording import StopRun

        for hook in self._hooks:
            hook.remove()
        try:
            self._answer = "\n".join(self._planned(optimizer)), 0
        except UnknownLossError as error:
            self._answer = self._call(str(error)), 2
        except GradgateError as error:
            self._answer = f"{_WHERE}: {str(error).removeprefix('plan: ')}", 2
        except Exception as error:  # noqa: BLE001  (a second run of the script's lines may raise anything)
            raised = f"the lines that compute the loss raise {type(error).__name__} when run again: {error}"
            self._answer = self._call(raised), 2
        finally:
            self._forwards.clear()
        raise StopRun

    def _planned(self, optimizer: Any) -> Iterator[str]:
        """Yield the lines of the report: where the script stopped, its loss, its batch, and the plan."""
        from gradgate.call_sites import user_frames
        from gradgate.planning import plan

        frames = user_frames()
        frame = next((each for each in frames if each in self._forwards), None)
        if frame is None:
            raise UnknownLossError("the function that steps the optimizer does not call the model")
        file = frame.f_code.co_filename
        names = {**frame.f_globals, **frame.f_locals}
        self._optimizer = next((name for name, value in names.items() if value is optimizer), "optimizer")
        found = loss_source(Frame(file, frame.f_lineno, frame.f_code.co_name), self._forwards[frame])
        batch = _batch_in(found, names, self._forwards[frame][found.forward_line])
        space = names | {"batch": batch}
        try:
            exec(compile(found.function(list(batch)), f"<loss of {file}>", "exec"), space)
        except SyntaxError as error:  # such as a `continue` outside of its loop
            raise UnknownLossError(f"its lines cannot be moved into a function: {error.msg}") from None
        made = plan(space["loss_fn"], batch, budget_bytes=self._budget, optimizer=optimizer)
        first, last = found.lines
        yield f"stopped      before the first optimizer step, {place_of(file, frame.f_lineno)}"
        yield f"loss         {place_of(file, first)}{f'-{last}' if last > first else ''}"
        yield f"batch        {', '.join(f'{name} {_shown(value)}' for name, value in batch.items())}"
        samples = sum(len(part.indices) for part in made.parts)
        whole = made.resident.total_bytes + made.peak_bytes(samples)
        yield f"whole batch  {counted(samples, 'sample')} at once would take {format_bytes(whole)}"
        yield ""
        yield str(made)

    def _call(self, why: str) -> str:
        """Return why there is no plan, and how to call gg.plan directly."""
        budget = f'budget_bytes="{self._budget}", ' if self._budget else ""
        call = _CALL.format(script=self._program.target, budget=budget, optimizer=self._optimizer)
        return f"{_WHERE}: cannot tell how the loss is computed from a batch: {why}.\n{call}"

    def tell(self, how: How, code: int, _: list[Log]) -> int:
        """Print the plan, or why there is none. Return the exit code."""
        text, answered = self._answer or ("", 2)
        script = self._program.target
        if code and answered:
            text = f"{_WHERE}: {script} ended with exit code {code} before its first optimizer step."
        elif not text:
            text = self._call(f"{script} made no step of a torch optimizer in this process")
        (sys.stderr if answered else sys.stdout).write(text.rstrip("\n") + "\n")
        return answered and (code or answered)


def _batch_in(found: LossSource, names: dict[str, Any], samples: int) -> dict[str, Any]:
    """Return the variables that hold the samples of the batch.

    Tensors whose length differs from that of the model's input, such as class weights, are not part of the batch.
    If the model gets its input by keyword, ``samples`` is 0, and every tensor is part of the batch.
    """
    from torch.nn import Parameter

    from gradgate.pytree import tensors_in

    batch = {}
    for name in found.names:
        tensors = [each for each in tensors_in(names.get(name)) if not isinstance(each, Parameter)]
        if any(each.requires_grad for each in tensors):
            raise UnknownLossError(f"{name} comes from an earlier part of the graph")
        if any(not samples or (each.ndim and len(each) == samples) for each in tensors):
            batch[name] = names[name]
    if not batch:
        raise UnknownLossError(
            f"no variable holds the tensors from which the loss in line {found.lines[0]} is computed"
        )
    return batch


def _shown(value: Any) -> str:
    """Return the shapes of the tensors in a value: "[64, 3, 32, 32]"."""
    from gradgate.pytree import tensors_in

    return " ".join(str(list(each.shape)) for each in tensors_in(value))
