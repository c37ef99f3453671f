"""Sentences differ in length, and a micro-batch is as wide as its longest sentence, so the padding of shorter
sentences is computed for nothing. A plan groups sentences of similar length and trims the padding, within a memory
budget. The update stays the same, because the gradient of a window does not depend on the split.

The budget in this example is the memory that the usual micro-batches of 8 take.
"""

from pydoc_data.topics import topics

import torch
import torch.nn.functional as F
from torch import nn

import gradgate as gg
from gradgate.planning import peak_memory

WINDOW, BY_HAND, LONGEST = 64, 8, 160
PADDING = -100  # the label that cross_entropy ignores


class CharacterModel(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.characters, self.positions = nn.Embedding(128, width), nn.Embedding(LONGEST, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(width, 128)

    def forward(self, ids):
        length = ids.shape[1]
        h = self.characters(ids) + self.positions(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.blocks:
            h = block(h, src_mask=mask, is_causal=True)
        return self.head(h)


def read_window():
    """Return 64 sentences of Python's help texts as padded ids, labels and a mask."""
    sentences = " ".join(" ".join(text.split()) for text in topics.values()).split(". ")
    rows = [row for sentence in sentences if 8 < len(row := sentence.encode("ascii", "replace")) <= LONGEST]
    rows = rows[:: len(rows) // WINDOW][:WINDOW]
    width = max(map(len, rows)) - 1
    ids = torch.zeros(WINDOW, width, dtype=torch.long)
    labels = torch.full_like(ids, PADDING)
    for number, row in enumerate(rows):
        text = torch.tensor(list(row))
        ids[number, : len(row) - 1], labels[number, : len(row) - 1] = text[:-1], text[1:]
    return {"ids": ids, "labels": labels, "mask": labels != PADDING}


def main():
    torch.manual_seed(0)
    model, window = CharacterModel().double(), read_window()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def loss_fn(batch):
        logits = model(batch["ids"])
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), ignore_index=PADDING)
        return loss, batch["mask"].sum()

    def taken_by_hand(rows):
        longest = int(window["mask"][rows].sum(1).max())
        return {name: part[rows, :longest] for name, part in window.items()}

    by_hand = [taken_by_hand(rows) for rows in torch.arange(WINDOW).split(BY_HAND)]
    columns_by_hand = sum(batch["ids"].numel() for batch in by_hand)

    # The budget is the memory that the widest of the usual micro-batches takes.
    generous = gg.plan(loss_fn, window, budget_bytes="1TiB", lengths="mask", optimizer=optimizer)
    widest = max(by_hand, key=lambda batch: batch["ids"].shape[1])["ids"].shape
    budget = generous.resident.total_bytes + generous.peak_bytes(*widest)
    plan = gg.plan(loss_fn, window, budget_bytes=budget, lengths="mask", optimizer=optimizer)
    print(plan, end="\n\n")

    whole = torch.autograd.grad(loss_fn(window)[0], list(model.parameters()))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with peak_memory() as memory:
        gg.Accumulator(optimizer).step(loss_fn, window, plan=plan)
    received = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]
    largest = max(float(gradient.abs().max()) for gradient in whole)
    error = max(float((a - b).abs().max()) for a, b in zip(received, whole, strict=True)) / largest

    split = plan.split(window)
    columns = sum(len(micro.indices) * micro.length for micro in split)
    characters = int(window["mask"].sum())
    measured = memory.peak_bytes / (split.peak_bytes + plan.resident.gradient_bytes)
    print(f"{characters} characters; columns computed: by hand {columns_by_hand}, by plan {columns}")
    print(f"error of the planned update's gradient, relative to the whole window's: {error:.0e}")
    print(f"peak memory of the update, measured / estimated: {measured:.3f}")
    return {
        "characters": characters,
        "columns": {"by hand": columns_by_hand, "by plan": columns},
        "error": error,
        "estimated": plan.estimated,
        "within_budget": plan.resident.total_bytes + split.peak_bytes <= budget,
        "measured": measured,
    }


if __name__ == "__main__":
    main()
