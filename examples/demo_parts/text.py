"""A small transformer that learns Python's own help texts (pydoc_data is part of Python), sentence by sentence and
character by character. Sentences differ in length: each micro-batch is padded to its longest sentence, and the loss
is the mean over its real characters.
"""

import re
from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import gradgate as gg

from .task import NO_TARGET, Pair, Task, Window, held_out_loss
from .transformer import Transformer

MICRO_BATCH, WINDOW, HELD_OUT = 8, 8, 96
SHORTEST, LONGEST = 12, 96


def text_task(*, seed: int, quick: bool) -> Task:
    """Read the sentences and describe the training task."""
    sentences, vocabulary_size = read_sentences(seed)
    test = [collate(sentences[i : i + 32]) for i in range(0, HELD_OUT, 32)]
    train = sentences[HELD_OUT : HELD_OUT + (84 if quick else 644)]

    data: Any = train  # DataLoader accepts a list, although its annotation doesn't

    def make_model() -> nn.Module:
        torch.manual_seed(seed)
        return Transformer(vocabulary_size, longest=LONGEST)

    def windows(epoch: int) -> Iterator[Window]:
        order = torch.Generator().manual_seed(epoch)
        loader = DataLoader(data, MICRO_BATCH, shuffle=True, generator=order, collate_fn=collate)
        return iter(gg.windows(loader, size=WINDOW))

    def join(window: Window) -> Pair:
        inputs = [row for x, _ in window for row in x]
        targets = [row for _, y in window for row in y]
        return pad(inputs, 0), pad(targets, NO_TARGET)

    counts = [int((y != NO_TARGET).sum()) for window in windows(0) for _, y in window]
    return Task(
        name="Help texts, small transformer",
        about=(
            f"{len(train)} sentences, {MICRO_BATCH * WINDOW} to an update, {MICRO_BATCH} to a micro-batch, "
            f"which hold {min(counts)} to {max(counts)} characters"
        ),
        make_model=make_model,
        windows=windows,
        join=join,
        score=lambda model: held_out_loss(model, test),
        score_name="loss per held-out character",
        score_format=".4f",
        epochs=2 if quick else 4,
        updates_per_epoch=-(-len(train) // (MICRO_BATCH * WINDOW)),
        learning_rate=3e-3,
    )


def read_sentences(seed: int) -> tuple[list[Tensor], int]:
    """Return each sentence as character numbers, shuffled, and the size of the vocabulary."""
    paragraphs = (" ".join(p.split()) for text in topics.values() for p in text.split("\n\n"))
    parts = {s for p in paragraphs for s in re.split(r"(?<=[.!?:]) ", p)}
    sentences = sorted(s[: LONGEST + 1] for s in parts if len(s) >= SHORTEST)
    characters = sorted(set("".join(sentences)))
    number = {character: i for i, character in enumerate(characters)}
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(seed)).tolist()
    return [torch.tensor([number[c] for c in sentences[i]]) for i in order], len(characters)


def collate(sentences: list[Tensor]) -> Pair:
    """Pad sentences to the longest. The target of each position is the next character."""
    return pad([s[:-1] for s in sentences], 0), pad([s[1:] for s in sentences], NO_TARGET)


def pad(rows: list[Tensor], value: int) -> Tensor:
    """Stack rows of unequal length as [N, longest], padded with ``value``."""
    return pad_sequence(rows, batch_first=True, padding_value=value)
