"""Makes parameter groups for an optimizer, with learning rates by module."""

from __future__ import annotations

import fnmatch
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from gradgate.errors import OptionError

_NORMS = (nn.LayerNorm, nn.RMSNorm)  # their parameters may have several dimensions


def param_groups(
    model: nn.Module,
    factors: Mapping[str, float] | None = None,
    *,
    lr: float,
    weight_decay: float | None = None,
    no_decay: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Sort a model's parameters into optimizer groups, with learning rates by module.

    Args:
        model: the model. Frozen parameters are included; an optimizer skips them until they are unfrozen.
        factors: patterns and factors above 0; parameters that match a pattern have a learning rate of ``lr``
            times its factor. A pattern is the path of a module or parameter (``"backbone"``,
            ``"backbone.layer4"``), and may contain ``*`` and ``?`` (``"encoder.*.norm"``). The last pattern that
            matches counts, so write general patterns first.
        lr: the learning rate of all other parameters.
        weight_decay: the weight decay of every group, but 0 for biases, parameters of norms, other parameters with
            fewer than two dimensions, and parameters that ``no_decay`` matches. By default, the optimizer's own
            weight decay applies to all.
        no_decay: patterns, as above, of further parameters without weight decay: ``["embedding"]``.

    Returns:
        Groups with ``params``, ``lr``, ``name`` and, if given, ``weight_decay``; pass them to an optimizer.

    Raises:
        OptionError: a pattern matches nothing, or later patterns match everything that it matches; a factor is not
            above 0; a tied parameter gets different factors by its two names.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2), torch.nn.Linear(2, 1))
        >>> groups = param_groups(model, {"0": 0.1}, lr=0.01, weight_decay=0.05)
        >>> for group in groups:
        ...     print(group["name"], len(group["params"]), round(group["lr"], 6), group["weight_decay"])
        0 1 0.001 0.05
        0, not decayed 1 0.001 0.0
        rest 1 0.01 0.05
        rest, not decayed 3 0.01 0.0
        >>> optimizer = torch.optim.AdamW(groups)
    """
    factors = dict(factors or {})
    no_decay = [no_decay] if isinstance(no_decay, str) else list(no_decay)
    if no_decay and weight_decay is None:
        raise OptionError(
            "param_groups: no_decay is given without weight_decay, so it has no effect. Give both."
        )
    _check_numbers(factors, lr, weight_decay)
    names: dict[Tensor, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    if not names:
        raise OptionError(
            f"param_groups: {type(model).__name__} has no parameters. Pass the model that is trained."
        )
    chosen = {parameter: _last_match(paths, factors) for parameter, paths in names.items()}
    _check_used(factors, no_decay, chosen, names)
    norms = (module for module in model.modules() if isinstance(module, _NORMS))
    undecayed: set[Tensor] = {parameter for norm in norms for parameter in norm.parameters()}
    undecayed |= {p for p, paths in names.items() if p.dim() < 2 or _last_match(paths, no_decay)}
    undecayed = undecayed if weight_decay is not None else set()
    groups = []
    for pattern, decayed in itertools.product((*factors, None), (True, False)):
        group: dict[str, Any] = {
            "params": [
                p for p, match in chosen.items() if match == pattern and (p not in undecayed) == decayed
            ],
            "lr": lr if pattern is None else lr * factors[pattern],
            "name": (pattern or "rest") + ("" if decayed else ", not decayed"),
        }
        if weight_decay is not None:
            group["weight_decay"] = weight_decay if decayed else 0.0
        if group["params"]:
            groups.append(group)
    return groups


def _last_match(paths: Iterable[str], patterns: Iterable[str]) -> str | None:
    """Return the last pattern that matches one of a parameter's paths, or a module that contains it."""
    prefixes = {prefix for path in paths for prefix in itertools.accumulate(path.split("."), "{}.{}".format)}
    matching = [pattern for pattern in patterns if pattern in prefixes or fnmatch.filter(prefixes, pattern)]
    return matching[-1] if matching else None


def _check_numbers(factors: dict[str, float], lr: float, weight_decay: float | None) -> None:
    for pattern, factor in factors.items():
        if not factor > 0 or math.isinf(factor):
            raise OptionError(
                f"param_groups: the factor of {pattern!r} is {factor}. It must be finite and above 0. To stop "
                "training a module, freeze it with gg.frozen(module): a learning rate of 0 would still compute its "
                "gradients."
            )
    if not lr > 0:
        raise OptionError(f"param_groups: lr is {lr}. It must be above 0.")
    if weight_decay is not None and not weight_decay >= 0:
        raise OptionError(f"param_groups: weight_decay is {weight_decay}. It must be 0 or above.")


def _check_used(
    factors: dict[str, float],
    no_decay: Sequence[str],
    chosen: dict[Tensor, str | None],
    names: dict[Tensor, list[str]],
) -> None:
    for pattern in (*factors, *no_decay):
        if not any(_last_match(paths, [pattern]) for paths in names.values()):
            paths = sorted({path.split(".")[0] for paths in names.values() for path in paths})
            raise OptionError(
                f"param_groups: {pattern!r} matches no module and no parameter. Use paths as in "
                f"model.named_parameters(); the top level has {', '.join(paths[:5])}"
                f"{' and more' if len(paths) > 5 else ''}."
            )
    for paths in names.values():
        wanted = {path: _last_match([path], factors) for path in paths}
        if len({factors[pattern] for pattern in wanted.values() if pattern is not None}) > 1:
            both = " and ".join(
                f"{path} ({factors[pattern]})" for path, pattern in wanted.items() if pattern is not None
            )
            raise OptionError(
                f"param_groups: a tied parameter gets two factors, by its names {both}, but it has one learning "
                "rate. Use only one of its names."
            )
    for pattern in factors:
        if pattern not in chosen.values():
            raise OptionError(
                f"param_groups: later patterns match everything that {pattern!r} matches, and the last match "
                "counts. Write the general pattern before the special one."
            )
