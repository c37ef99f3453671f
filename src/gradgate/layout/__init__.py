"""Where a batch holds its samples, and how some of them are taken out.

A batch is a pytree. What lies in it, and how it is split into micro-batches:

- a tensor or numpy array holds the samples along dimension 0, or along the one that ``batch_dim`` names;
- a mapping, named tuple or dataclass is a record of fields, each with all samples;
- a list or tuple of numbers, texts or other objects has one entry for each sample;
- a list or tuple of tensors, lists or records is read as fields, or as one entry for each sample: whichever agrees
  with the rest of the batch. The batch itself is a record of fields, as a ``DataLoader`` yields it;
- a number, text, None or a tensor without dimensions is shared by all samples.

Whatever fits neither or both is an error that names the field: nothing is guessed.
"""

from gradgate.layout._fields import UNSAID, BatchDim, Path, Place, Unsaid, field_name, is_array, key_of, taken
from gradgate.layout._layout import Layout, layout_of
from gradgate.layout._windows import check_batch, looks_like_batch, looks_like_window

__all__ = [
    "UNSAID",
    "BatchDim",
    "Layout",
    "Path",
    "Place",
    "Unsaid",
    "check_batch",
    "field_name",
    "is_array",
    "key_of",
    "layout_of",
    "looks_like_batch",
    "looks_like_window",
    "taken",
]
