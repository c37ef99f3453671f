"""Finds the samples in a batch, and selects some of them.

A batch is a pytree. Its parts are read and split as follows:

- A tensor or numpy array holds the samples along dimension 0, or along the dimension that ``batch_dim`` names.
- A mapping, named tuple or dataclass is a record of fields. Each field holds all samples.
- A list or tuple of numbers, strings or other objects has one entry per sample.
- A list or tuple of tensors, lists or records is read as fields or as one entry per sample, whichever agrees with
  the rest of the batch. The batch itself is a record of fields, as a ``DataLoader`` yields it.
- A number, a string, None or a 0-dimensional tensor is shared by all samples.

A part that can be read in no way, or in two ways, raises an error that names its field. So does a tensor that may
be shared by all samples although it is as long as the batch.
"""

from gradgate.batch_layout._fields import (
    NOT_GIVEN,
    BatchDim,
    FieldDim,
    NotGiven,
    Path,
    check_batch,
    field_name,
    is_array,
    key_of,
    looks_like_batch,
    looks_like_window,
)
from gradgate.batch_layout._layout import Layout, layout_of

__all__ = [
    "NOT_GIVEN",
    "BatchDim",
    "FieldDim",
    "Layout",
    "NotGiven",
    "Path",
    "check_batch",
    "field_name",
    "is_array",
    "key_of",
    "layout_of",
    "looks_like_batch",
    "looks_like_window",
]
