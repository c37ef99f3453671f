"""The gradient sums of a window: one for each loss, of which one at a time stands in `.grad`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gradgate.accumulation._backward import backward, backward_sharded
from gradgate.accumulation._counts import Count, Reduction, is_zero
from gradgate.accumulation._gradients import add, dense_values, multiply
from gradgate.accumulation._loss_scale import LossScale
from gradgate.accumulation._running_sum import RunningSum, headroom_of
from gradgate.errors import GradientError, GraphError, UpdateError
from gradgate.ranks import Sharded
from gradgate.torch_compat import tensor_version


class Sums:
    """Runs backward passes and keeps their sums apart by loss until they are divided.

    Autograd adds into ``.grad``. A second loss has another divisor, so its sum may not be mixed with the
    first one's: when it comes, the first one's gradients are set aside and its own take their place.

    Args:
        parameters: the owned parameters; no other receives anything.
        scale: the loss scale of the window.
        thorough: watch every ``.grad`` for changes from elsewhere, not just one.
        sharded: what cuts the parameters into parts, and adds up over ranks within the backward pass.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        scale: LossScale,
        *,
        thorough: bool = False,
        sharded: Sharded | None = None,
    ) -> None:
        self.parameters = parameters
        self._sharded = sharded
        self._scale = scale
        self._standing: RunningSum | None = None
        self._seeds: dict[float, Tensor] = {}
        self._thorough = thorough
        self._witnesses: list[tuple[Tensor, Tensor | None, int]] = []
        self.by_name: dict[str, RunningSum] = {}
        self.torn = False
        """True from the start of a backward pass until its sum is recorded: if it raises, for good."""
        self.remember()

    def add(
        self,
        name: str,
        loss: Tensor,
        count: Count,
        reduction: Reduction,
        retain_graph: bool,
        receiving: Sequence[Tensor] | None = None,
    ) -> None:
        """Run the backward pass of one loss into its sum; a count of zero runs nothing.

        Of the owned parameters those in ``receiving`` receive; by default all.
        """
        self.check_whole()
        self.check_untouched()
        chosen = self._stand(name)
        if not is_zero(count) or self._sharded is not None:  # whose pass is waited for, whatever it counts
            parameters = self.parameters if receiving is None else receiving
            self._run(chosen, loss, count, reduction, retain_graph, parameters)
        chosen.record(loss, count, reduction)
        self.torn = False
        self.remember()

    def make_ready(self, name: str, loss: Tensor, count: Count, reduction: Reduction) -> RunningSum:
        """Bring a loss's sum to the unit of its next contribution, and return it."""
        self.check_whole()
        self.check_untouched()
        chosen = self._stand(name)
        if not is_zero(count):
            self._rescale(chosen, loss, count, reduction)
            self.torn = False
        self.remember()
        return chosen

    def _rescale(self, chosen: RunningSum, loss: Tensor, count: Count, reduction: Reduction) -> None:
        self.torn = True
        factor = chosen.make_ready(loss, count, reduction)
        if isinstance(factor, Tensor) or factor != 1:
            with torch.no_grad():
                multiply(dense_values(self.parameters), factor)

    def _run(
        self,
        chosen: RunningSum,
        loss: Tensor,
        count: Count,
        reduction: Reduction,
        retain_graph: bool,
        parameters: Sequence[Tensor],
    ) -> None:
        # Asked anew each time, for parameters may be frozen and unfrozen between micro-batches.
        inputs = [parameter for parameter in parameters if parameter.requires_grad]
        if not inputs:
            raise GraphError(
                "backward: every parameter that the optimizer owns is frozen (requires_grad is False), so "
                "nothing can be updated. Unfreeze one, or leave this update out."
            )
        if self._sharded is not None:
            if parameters is not self.parameters:
                raise UpdateError(
                    "backward: into is given, and under fully_shard a backward pass fills all that the loss "
                    "reaches. Cut the rest off: gg.stop_gradient(...)."
                )
            self.torn = True
            weight = 0.0 if is_zero(count) else chosen.weight(loss, count, reduction)
            backward_sharded(loss, self._seed(loss, weight), retain_graph, self._sharded)
            return
        self._rescale(chosen, loss, count, reduction)
        weight = chosen.weight(loss, count, reduction)
        if isinstance(weight, Tensor) or weight == 1:  # a tensor is 1 too, or 0 for a count of zero
            backward(loss, self._seed(loss, weight), inputs, retain_graph)
        else:
            self._add_apart(loss, weight, inputs, retain_graph)

    def _add_apart(self, loss: Tensor, weight: float, inputs: list[Tensor], retain_graph: bool) -> None:
        """Run a backward pass into gradients of its own, and add ``weight`` times these to the sum."""
        sums = self._set_aside()
        backward(loss, self._seed(loss, 1.0), inputs, retain_graph)
        gradients = self._set_aside(sums)
        with torch.no_grad():
            add(self.parameters, gradients, weight)

    def remember(self) -> None:
        """Take gradients as witnesses of what the last backward left: all of them, or the first there is."""
        self._witnesses = []
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is not None:
                self._witnesses.append((parameter, gradient, tensor_version.use(gradient)))
                if not self._thorough:
                    return
            elif self._thorough:
                self._witnesses.append((parameter, None, 0))

    def check_whole(self) -> None:
        """Raise UpdateError if a backward raised half-way and its exception was caught inside the block."""
        if self.torn:
            raise UpdateError(
                "update: a backward inside the block raised and the exception was caught there, so the sum may "
                "hold part of a micro-batch. The window was rolled back. Catch the exception outside the block, "
                "or use accumulator.step(), which retries."
            )

    def check_untouched(self) -> None:
        """Raise GradientError if ``.grad`` was written to since the last backward of this window.

        In an accumulator's first windows every parameter is looked at; later one, which clearing, clipping
        and unscaling reach too.
        """
        for parameter, gradient, version in self._witnesses:
            if parameter.grad is not gradient or (
                gradient is not None and tensor_version.use(gradient) != version
            ):
                raise GradientError(
                    "update: .grad was changed inside the block, outside update.backward(...): by zero_grad, a "
                    "clip, scaler.unscale_ or a backward of its own. The sum of the window is lost, and was rolled "
                    "back. Leave these to the update: Accumulator(clip_norm=..., scaler=...), "
                    "update.backward(loss)."
                )

    def _seed(self, loss: Tensor, weight: Count) -> Tensor:
        """Return the gradient that the backward pass starts with: a weight, nearly always 1, times the scale."""
        if isinstance(weight, Tensor):
            return self._scale.apply(weight.to(loss.dtype).reshape(loss.shape))
        seed = self._seeds.get(weight)
        if seed is None or seed.dtype != loss.dtype or seed.device != loss.device or seed.shape != loss.shape:
            seed = self._seeds[weight] = self._scale.apply(torch.full_like(loss, weight, requires_grad=False))
        return seed

    def _stand(self, name: str) -> RunningSum:
        """Make the named loss's sum the one that stands in ``.grad``."""
        chosen = self.by_name.get(name)
        if chosen is None:
            if self._sharded is not None and self.by_name:
                raise UpdateError(
                    f"backward: {name!r} is a second loss, and under fully_shard there is one sum for all "
                    "losses. Add them up: update.backward(loss_a + loss_b, count=n)."
                )
            unit = None if self._sharded is None else self._sharded.unit
            chosen = self.by_name[name] = RunningSum(name, headroom_of(self.parameters), unit)
        if chosen is not self._standing:
            gradients = self._set_aside(chosen.aside) if self._standing or chosen.aside else None
            if self._standing is not None:
                self._standing.aside = gradients
            chosen.aside = None
            self._standing = chosen
        return chosen

    def _set_aside(self, others: Sequence[Tensor | None] | None = None) -> list[Tensor | None]:
        """Put ``others``, or nothing, in place of all gradients; return these."""
        gradients = [parameter.grad for parameter in self.parameters]
        for place, parameter in enumerate(self.parameters):
            parameter.grad = None if others is None else others[place]
        return gradients

    def filled(self) -> list[str]:
        """Say for each parameter whether any loss has a gradient for it: "0" no, "1" yes, "2" a sparse one."""
        if self._sharded is not None:  # which holds zeros for what this rank did not reach
            return [str(int(id(parameter) in self._sharded.reached)) for parameter in self.parameters]
        kinds = []
        for place, parameter in enumerate(self.parameters):
            asides = [one.aside[place] for one in self.by_name.values() if one.aside is not None]
            held = [one for one in (parameter.grad, *asides) if one is not None]
            kinds.append("0" if not held else "2" if all(one.is_sparse for one in held) else "1")
        return kinds

    def gather(self, totals: dict[str, float] | None = None) -> float | None:
        """Bring all sums together in ``.grad``; return the factor that is still to be applied, or None.

        None says that every count is zero. With one loss nothing is touched: its factor can be folded
        into the clip. Waits for the device where counts lie on one.

        Args:
            totals: each loss's count over all ranks; by default those of this process. May name losses
                of which this process has nothing.
        """
        self.check_whole()
        self.check_untouched()
        totals = totals or {name: one.total_count() for name, one in self.by_name.items()}
        if not any(totals.values()):
            return None
        if not self.by_name:
            return 1.0
        # The first loss's tensors stay: with clear="zero" they are the ones that were there before.
        standing = self._stand(next(iter(self.by_name)))
        factor = standing.factor(totals[standing.name])
        if len(totals) == 1:
            return factor
        multiply(dense_values(self.parameters), factor)
        for name, one in self.by_name.items():
            if one.aside is not None:
                add(self.parameters, one.aside, one.factor(totals[name]))
                one.aside = None
        return 1.0

    def release(self) -> None:
        """Let go of gradients and seeds; losses and counts stay, for logging."""
        for one in self.by_name.values():
            one.aside = None
        self._seeds.clear()
        self._standing = None
        self._witnesses, self.parameters = [], ()

    def state(self) -> list[dict[str, Any]]:
        """Return copies of all sums, in plain containers."""
        self.check_whole()
        standing = [parameter.grad for parameter in self.parameters]
        return [
            {
                **one.state_dict(),
                "gradients": [
                    None if gradient is None else gradient.detach().clone()
                    for gradient in (standing if one is self._standing else one.aside or ())
                ],
            }
            for one in self.by_name.values()
        ]

    def resume(self, state: list[dict[str, Any]]) -> None:
        """Take over saved sums."""
        for saved in state:
            numbers = {key: item for key, item in saved.items() if key != "gradients"}
            one = RunningSum.from_state(numbers, headroom_of(self.parameters))
            one.aside = [
                None if gradient is None else gradient.to(parameter.device, copy=True)
                for parameter, gradient in zip(self.parameters, saved["gradients"], strict=True)
            ]
            self.by_name[one.name] = one
        if state:
            self._stand(state[0]["name"])
        self.remember()
