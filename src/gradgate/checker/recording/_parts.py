"""The parts of the watcher, and the torch functions that each part watches."""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from gradgate.checker.recording._backward import Backwards
from gradgate.checker.recording._creation import Creation
from gradgate.checker.recording._drift import Drift
from gradgate.checker.recording._forward import TENSOR_DATA, Modes, NoGrad
from gradgate.checker.recording._gradients import Gradients
from gradgate.checker.recording._names import Names
from gradgate.checker.recording._patches import Patch, Patches, tracing
from gradgate.checker.recording._ranks import COLLECTIVES, RankRecorder
from gradgate.checker.recording._recorder import Recorder
from gradgate.checker.recording._schedules import SCHEDULERS, Loaders, Scalers, Schedulers
from gradgate.checker.recording._steps import Steps
from gradgate.checker.recording._user_objects import is_a
from gradgate.checker.recording._writes import WRITES, Copies, Writes

_END = object()
_READ_AS_THEY_ARE = frozenset((Tensor, type(None), bool, int, float, list, tuple, dict))


class Parts:
    """The parts of the watcher. Each watches one kind of call."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.gradients = Gradients(recorder)
        self.names = Names(recorder)
        self.modes = Modes(recorder)
        self.creation = Creation(recorder)
        self.steps = Steps(recorder, self.gradients, self.creation, self._after_step)
        self.ranks = RankRecorder(recorder, self.gradients)
        self.drift = Drift(recorder)
        self.no_grad = NoGrad(recorder)
        self.backwards = Backwards(recorder, self.gradients, self.steps, self.ranks, self.drift)
        self.writes = Writes(recorder, self.gradients, self.steps)
        self.copies = Copies(recorder)
        self.schedulers = Schedulers(recorder)
        self.scalers = Scalers(recorder, self.gradients, self.steps)
        self.loaders = Loaders(recorder)

    def watch_closely(self) -> Patches:
        """Install the patches that a close look needs."""
        patches = Patches()
        patches.replace(Tensor, "data", property(TENSOR_DATA.__get__, self.writes.set_data))
        for patch in close_table(self):
            install(self.recorder, patch, patches)
        return patches

    def _after_step(self) -> None:
        if self.recorder.looking:
            self.writes.note()
            self.backwards.kept.look()
            self.names.find()
            self.drift.look()


def close_table(parts: Parts) -> Iterator[Patch]:
    """Yield the patches for methods that a step calls many times. They are watched only during a close look."""
    for name in WRITES:
        yield Patch(Tensor, name, functools.partial(parts.writes.called, name), when=parts.writes.by_hand)


def table(parts: Parts) -> Iterator[Patch]:
    """Yield the other patches, in the order of a training step."""
    made, grads = parts.creation, parts.gradients
    yield Patch(nn.Parameter, "__new__", made.parameter)
    yield Patch(nn.Parameter, "__deepcopy__", made.copied)
    yield Patch(Optimizer, "__init__", made.optimizer, writes=True)
    yield Patch(Optimizer, "add_param_group", made.group)
    yield Patch(Optimizer, "load_state_dict", made.state, writes=True)

    yield Patch(DataLoader, "__iter__", parts.loaders.iterate)
    yield Patch(nn.Module, "train", parts.modes.set, when=parts.modes.is_outermost, by_user=True)
    yield Patch(nn.Module, "__setstate__", parts.modes.copied)
    copies = parts.copies
    yield Patch(nn.Module, "state_dict", copies.taken, when=copies.is_outermost, by_user=True)
    yield Patch(nn.Module, "load_state_dict", copies.loaded, by_user=True)
    for context in (torch.no_grad, torch.inference_mode):
        yield Patch(context, "__enter__", parts.no_grad.entered, by_user=True)
        yield Patch(context, "__exit__", parts.no_grad.left, by_user=True)

    yield Patch(torch, "compile", parts.recorder.values.end)
    backwards = parts.backwards
    autograd = torch.autograd
    yield Patch(autograd, "backward", backwards.backward, span="backward", ends_run=True, iterables=True)
    yield Patch(autograd, "grad", backwards.grad, when=backwards.is_outermost, ends_run=True, iterables=True)
    yield Patch(Tensor, "register_hook", backwards.hook, by_user=True)
    scalers = parts.scalers
    yield Patch(GradScaler, "__init__", functools.partial(scalers.used, "made"))
    yield Patch(GradScaler, "scale", scalers.scale)
    yield Patch(GradScaler, "unscale_", scalers.unscale, writes=True)
    yield Patch(GradScaler, "step", scalers.step, writes=True)
    yield Patch(GradScaler, "update", functools.partial(scalers.used, "update"))
    for owner in (clip_grad, nn.utils):
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            yield Patch(owner, name, grads.clip, by_user=True, writes=True, span="clip", iterables=True)
    for kind in SCHEDULERS:
        if "step" in vars(kind):
            yield Patch(kind, "step", parts.schedulers.step)
        if "__init__" in vars(kind):
            yield Patch(kind, "__init__", parts.schedulers.made)
    for cleared in (Optimizer, nn.Module):
        yield Patch(cleared, "zero_grad", grads.zero_grad, by_user=True, writes=True, span="clear")

    if dist.is_available():
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data.distributed import DistributedSampler

        ranks = parts.ranks
        yield Patch(DistributedDataParallel, "__init__", ranks.wrapped, writes=True)
        yield Patch(DistributedDataParallel, "forward", ranks.forward)
        yield Patch(DistributedSampler, "__init__", ranks.sampler)
        yield Patch(dist, "destroy_process_group", lambda *_, **__: ranks.ended())
        for name in COLLECTIVES:
            if hasattr(dist, name):
                watch = functools.partial(ranks.collective, name)
                yield Patch(dist, name, watch, by_user=True, span="exchange")


def install(recorder: Recorder, patch: Patch, patches: Patches) -> None:
    """Replace a function by one that watches its calls. If this torch lacks the function, the script still runs."""
    with recorder.working():
        original = getattr(patch.owner, patch.name)
        patches.put(patch.owner, patch.name, original, _watched(recorder, patch, original))


def _watched(recorder: Recorder, patch: Patch, original: Callable[..., Any]) -> Callable[..., Any]:
    watch, when, span = patch.watch, patch.when, patch.span
    by_user, ends_run, iterables = patch.by_user, patch.ends_run, patch.iterables
    writes, thread, working = int(patch.writes), recorder.thread, recorder.working

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if (
            not recorder.active
            or (by_user and recorder.quiet)
            or (when is not None and not when(*args, **kwargs))
            or tracing()
        ):
            return original(*args, **kwargs)
        if ends_run:
            recorder.stop_if_due()
        ours = args, kwargs
        if iterables and not _READ_AS_THEY_ARE.issuperset(map(type, (*args, *kwargs.values()))):
            ours, (args, kwargs) = _twice(args, kwargs)
        call: Any = None
        with working() as before:
            call = watch(*ours[0], **ours[1])
            call = None if call is None or next(call, _END) is _END else call
        at = recorder.events.count
        thread.quiet += writes
        try:
            result = original(*args, **kwargs)
        except BaseException:
            thread.quiet -= writes
            if call is not None:
                with working():
                    call.close()
            raise
        thread.quiet -= writes
        if span is not None:
            recorder.took(span, before.clock, at)
        if call is None:
            return result
        with working():
            try:  # noqa: SIM105  (contextlib.suppress takes three calls, and this runs often)
                call.send(result)
            except StopIteration:
                pass
        return result

    return wrapper


def _twice(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the arguments twice, once for the watcher and once for torch: an iterator can be read only once."""
    given = (*args, *kwargs.values())
    ours = [list(each) if _is_iterable(each) else each for each in given]
    # clip_grad_norm_ warns about an empty generator, but not about an empty list.
    again = [
        (item for item in read) if type(each) is GeneratorType else read
        for each, read in zip(given, ours, strict=True)
    ]
    names, count = list(kwargs), len(args)
    return tuple((each[:count], dict(zip(names, each[count:], strict=True))) for each in (ours, again))


def _is_iterable(given: Any) -> bool:
    """Return whether an argument is an iterable, but no tensor, mapping, sequence or string."""
    if is_a(given, Tensor, dict, list, tuple, deque, str):
        return False
    static = functools.partial(inspect.getattr_static, type(given))
    return static("__iter__", None) is not None and static("keys", None) is None
