"""Make one batch of several."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gradgate.batch_layout import FieldDim, Layout, Path, field_name, is_array, key_of
from gradgate.errors import OptionError
from gradgate.planning._samples import Samples
from gradgate.planning._trim import Dims
from gradgate.pytree import children, value_at


def pooled(window: Sequence[Samples], pad: Any) -> Any:
    """Return one batch with all samples of several batches, padded to the longest.

    Args:
        window: the batches, in order.
        pad: the padding value where the batches' own padding does not show it: a number, or one by field.

    Raises:
        OptionError: batches have different fields or widths, or share different values.
    """
    first = window[0]
    for other in window[1:]:
        _check_same_fields(first, other)
    widths = {samples.lengths.width for samples in window if samples.lengths is not None}
    dims: Dims = {path: along for samples in window for path, along in samples.dims.items()}

    def joined(path: Path, _: Any, dim: FieldDim) -> Any:
        parts = [value_at(samples.batch, path) for samples in window]
        if dim == "list":
            return type(parts[0])(item for part in parts for item in part)
        if len(widths) > 1 and path in dims:
            value = _padding_value(path, window, pad)
            pairs = zip(parts, window, strict=True)
            parts = [_padded(part, dims[path], samples, max(widths), value) for part, samples in pairs]
        shapes = {(*part.shape[: int(dim or 0)], *part.shape[int(dim or 0) + 1 :]) for part in parts}
        if len(shapes) > 1:
            raise OptionError(
                f"pool: {field_name(path)} has different sizes in these batches: {sorted(shapes)}. To have them "
                "padded to one width, make the plan with lengths=, and name the field in trim=."
            )
        concatenate = torch.cat if isinstance(parts[0], Tensor) else sys.modules["numpy"].concatenate
        return concatenate(parts, int(dim or 0))

    return first.layout.mapped(first.batch, joined)


def _check_same_fields(first: Samples, other: Samples) -> None:
    fields, others = first.layout.fields(), other.layout.fields()
    if fields != others:
        odd = next(path for path in {**fields, **others} if fields.get(path, "") != others.get(path, ""))
        raise OptionError(
            f"pool: the batches are of different kinds: {field_name(odd)} is not the same in all."
        )
    for path, value in _shared_values(first.batch, (), first.layout):
        if not _equal(value, value_at(other.batch, path)):
            raise OptionError(
                f"pool: {field_name(path)} is shared by the samples of each batch, and differs between batches. "
                "Give each sample its own, in a tensor or list as long as the batch."
            )


def _shared_values(value: Any, path: Path, layout: Layout) -> Iterator[tuple[Path, Any]]:
    """Yield what all samples share, with its path."""
    if path in layout.fields():
        return
    inside = children(value)
    if inside is None:
        yield path, value
    for key, item in inside or ():
        yield from _shared_values(item, (*path, key), layout)


def _equal(value: Any, other: Any) -> bool:
    if is_array(value) or isinstance(value, Tensor):
        return type(value) is type(other) and value.shape == other.shape and bool((value == other).all())
    return value is other or bool(value == other)


def _padded(part: Any, dims: tuple[int, ...], samples: Samples, width: int, value: Any) -> Any:
    lengths = samples.lengths
    if lengths is None or lengths.width == width:
        return part
    sizes = [0] * (2 * part.ndim)  # of the last dimension first: before it, after it
    for dim in dims:
        sizes[2 * (part.ndim - 1 - dim) + (not lengths.left)] = width - lengths.width
    tensor = F.pad(torch.as_tensor(part), sizes, value=value)
    return tensor if isinstance(part, Tensor) else tensor.numpy()


def _padding_value(path: Path, window: Sequence[Samples], pad: Any) -> Any:
    """Return the padding value of a field: the one given, or the one that its padding shows."""
    if isinstance(pad, Mapping):
        if path in pad or (len(path) == 1 and path[0] in pad):
            return pad[path] if path in pad else pad[path[0]]
    elif pad is not None:
        return pad
    for samples in window:
        lengths = samples.lengths
        if lengths is not None and lengths.width:
            value = torch.as_tensor(value_at(samples.batch, path))
            dim, column = samples.layout.dims[path], samples.dims.get(path, (1,))[0]
            rows = value.movedim((dim, column), (0, 1))
            beyond = rows[lengths.padding(rows.device)]
            if beyond.numel():
                return beyond.flatten()[0].item()
    raise OptionError(
        f"pool: batches of different widths are pooled, and nothing shows with what {field_name(path)} is padded. "
        f"Say it: pad={{{key_of(path)}: 0}}, or one number for all."
    )
