"""A count that an accumulator is given beside a loss whose graph shows another number of items.

Each wrong loop is put right by the edit that it is offered, or, where there is none, by following the advice. Its
parameters then are those of the right loop, to the bit.
"""

import pytest

from tests.checker.rules._watched import findings_of

HEAD = """
import torch
import torch.nn.functional as F
from torch import nn

import gradgate as gg

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(11, 16), nn.Linear(16, 11))
accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=0.1), model=model)


def batches():
    for length in (5, 9, 3, 12):
        ids = torch.randint(11, (4, 12))
        yield ids, torch.arange(12).expand(4, 12) < length
"""
SHIFTED = """
for _ in range(3):
    with accumulator.update() as update:
        for ids, attention_mask in update.micro_batches(batches()):
            labels = ids.masked_fill(~attention_mask, -100)
            logits = model(ids)
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
            update.backward(loss, count=COUNT)
"""
IN_THE_LOADER = """
for _ in range(3):
    with accumulator.update() as update:
        for ids, attention_mask in update.micro_batches(batches()):
            labels = ids.masked_fill(~attention_mask, -100).roll(-1, 1)
            labels[:, -1] = -100
            n_tokens = COUNT
            loss = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), label_smoothing=0.1)
            update.backward(loss, count=n_tokens, name="tokens")
"""
BY_A_FUNCTION = """
def loss_fn(batch):
    ids, attention_mask = batch
    labels = ids.masked_fill(~attention_mask, -100)[:, 1:]
    loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), labels.flatten())
    return loss, COUNT


for _ in range(3):
    accumulator.step_window(loss_fn, list(batches()))
"""
RIGHT = {
    SHIFTED: "(labels[:, 1:] != -100).sum()",
    IN_THE_LOADER: "(labels != -100).sum()",
    BY_A_FUNCTION: "(labels != -100).sum()",
}


@pytest.mark.filterwarnings("ignore::gradgate.errors.CountWarning")
@pytest.mark.parametrize("loop", RIGHT, ids=["shifted", "in the loader", "by a function"])
def test_it_is_found_at_the_call(loop: str) -> None:
    wrong, right = (HEAD + loop.replace("COUNT", count) for count in ("attention_mask.sum()", RIGHT[loop]))
    assert findings_of(right) == []
    (found,) = findings_of(wrong)
    assert found.code == "GG103"
    assert found.message.startswith(
        "The count is 36 for a mean over 32 items, but an earlier micro-batch of the window has the count 20 for "
        "16 items: an item here weighs 0.9 times as much."
    )
    line = wrong.splitlines()[found.line - 1]
    assert ("accumulator.step_window(" if loop is BY_A_FUNCTION else "update.backward(") in line


@pytest.mark.parametrize("count", ["len(ids)", "3 * (labels != -100).sum()"])
def test_counts_in_proportion_to_the_items_are_right(count: str) -> None:
    even = HEAD.replace("(5, 9, 3, 12)", "(9, 9, 9)")
    assert findings_of((even if "len" in count else HEAD) + IN_THE_LOADER.replace("COUNT", count)) == []
