"""One batch made of several."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradgate.errors import OptionError
from gradgate.layout import Layout, Path, Place, field_name, is_array, key_of
from gradgate.planning._samples import Samples
from gradgate.planning._trim import Dims
from gradgate.pytree import children, value_at


def pooled(window: Sequence[Samples], pad: Any) -> Any:
    """Put the batches of a window together, padded to the longest.

    Args:
        window: each batch as samples, in order.
        pad: with what they are padded where their own padding does not show it: a number, or one by field.

    Raises:
        OptionError: batches have different fields or widths, or share different values.
    """
    first = window[0]
    for other in window[1:]:
        _check_alike(first, other)
    widths = {samples.lengths.width for samples in window if samples.lengths is not None}
    dims: Dims = {path: along for samples in window for path, along in samples.dims.items()}

    def joined(path: Path, _: Any, place: Place) -> Any:
        parts = [value_at(samples.batch, path) for samples in window]
        if place == "list":
            return type(parts[0])(item for part in parts for item in part)
        if len(widths) > 1 and path in dims:
            value = _pad_value(path, window, pad)
            pairs = zip(parts, window, strict=True)
            parts = [_padded(part, dims[path], samples, max(widths), value) for part, samples in pairs]
        shapes = {tuple(size for dim, size in enumerate(part.shape) if dim != place) for part in parts}
        if len(shapes) > 1:
            raise OptionError(
                f"pool: {field_name(path)} has different sizes in these batches: {sorted(shapes)}. To have them "
                "padded to one width, make the plan with lengths=, and name the field in trim=."
            )
        if isinstance(parts[0], Tensor):
            return torch.cat(parts, int(place or 0))
        return sys.modules["numpy"].concatenate(parts, int(place or 0))

    return first.layout.mapped(first.batch, joined)


def _check_alike(first: Samples, other: Samples) -> None:
    if first.raw:
        return
    mine, its = first.layout.fields(), other.layout.fields()
    if mine != its:
        odd = next(path for path in {**mine, **its} if mine.get(path, "") != its.get(path, ""))
        raise OptionError(
            f"pool: the batches are of different kinds: {field_name(odd)} is not the same in all."
        )
    for path, value in shared_values(first.batch, (), first.layout):
        if not _equal(value, value_at(other.batch, path)):
            raise OptionError(
                f"pool: {field_name(path)} is shared by the samples of each batch, and differs between batches. "
                "Give each sample its own, in a tensor or list as long as the batch."
            )


def shared_values(value: Any, path: Path, layout: Layout) -> list[tuple[Path, Any]]:
    """Return what all samples share, with its path."""
    if path in layout.fields():
        return []
    inside = children(value)
    if inside is None:
        return [(path, value)]
    return [found for key, item in inside for found in shared_values(item, (*path, key), layout)]


def _equal(one: Any, other: Any) -> bool:
    if is_array(one) or isinstance(one, Tensor):
        return type(one) is type(other) and one.shape == other.shape and bool((one == other).all())
    return one is other or bool(one == other)


def _padded(part: Any, dims: tuple[int, ...], samples: Samples, width: int, value: Any) -> Any:
    lengths = samples.lengths
    if lengths is None or lengths.width == width:
        return part
    missing = width - lengths.width
    sizes = [0] * (2 * part.ndim)  # of the last dimension first: before it, behind it
    for dim in dims:
        sizes[2 * (part.ndim - 1 - dim) + (not lengths.left)] = missing
    tensor = F.pad(torch.as_tensor(part), sizes, value=value)
    return tensor if isinstance(part, Tensor) else tensor.numpy()


def _pad_value(path: Path, window: Sequence[Samples], pad: Any) -> Any:
    """Return what a field is padded with: as it was said, or as its padding shows."""
    if isinstance(pad, Mapping):
        if path in pad or (len(path) == 1 and path[0] in pad):
            return pad[path] if path in pad else pad[path[0]]
    elif pad is not None:
        return pad
    for samples in window:
        lengths = samples.lengths
        if lengths is not None and lengths.width:
            value = torch.as_tensor(value_at(samples.batch, path))
            (place, column) = samples.layout.places[path], samples.dims.get(path, (1,))[0]
            rows = value.movedim((place, column), (0, 1))
            beyond = rows[lengths.padding(rows.device)]
            if beyond.numel():
                return beyond.flatten()[0].item()
    raise OptionError(
        f"pool: batches of different widths are pooled, and nothing shows with what {field_name(path)} is padded. "
        f"Say it: pad={{{key_of(path)}: 0}}, or one number for all."
    )
