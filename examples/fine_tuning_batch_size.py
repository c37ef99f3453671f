"""``train_batch_size`` is the size of one forward and backward pass, and ``gradient_accumulation_steps`` is the
number of such passes per update. The optimizer only sees their product: 32 x 1, 8 x 4 and 4 x 8 give the same
weights. ``train_batch_size`` alone determines memory and speed.

This holds only if each item has the same weight. Dividing each loss by ``gradient_accumulation_steps`` is right for
equal micro-batches, but the last window is shorter, and micro-batches of text hold unequal numbers of tokens.
"""

import codecs
import contextlib
import io

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import gradgate as gg

KNOBS = ((32, 1), (8, 4), (4, 8))
TOKENS = (3, 64, 8, 31)
PADDING = -100  # the label that cross_entropy ignores


def relative_error(found, right):
    return float((found - right).abs().max() / right.abs().max())


def one_epoch(train_batch_size, gradient_accumulation_steps, by_hand):
    """Train on scikit-learn's digits. Return the weights and the numbers of micro-batches and updates."""
    x, y = map(torch.from_numpy, load_digits(return_X_y=True))
    micro_batches = list(zip((x / 16).split(train_batch_size), y.split(train_batch_size), strict=True))
    windows = list(gg.windows(micro_batches, size=gradient_accumulation_steps))
    model = nn.Linear(64, 10, dtype=torch.float64)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    accumulator = gg.Accumulator(optimizer)

    def loss_fn(micro_batch):
        pixels, digits = micro_batch
        return F.cross_entropy(model(pixels), digits), len(digits)

    for window in windows:
        if by_hand:
            for micro_batch in window:
                loss, _ = loss_fn(micro_batch)
                (loss / gradient_accumulation_steps).backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with accumulator.update() as update:
                for micro_batch in update.micro_batches(window):
                    loss, count = loss_fn(micro_batch)
                    update.backward(loss, count=count)
    return model.weight.detach(), len(micro_batches), len(windows)


def padded_sentences():
    """Return four pieces of the Zen of Python as bytes, labeled with the next byte; padding is ignored."""
    with contextlib.redirect_stdout(io.StringIO()):
        import this
    text = torch.tensor(list(codecs.decode(this.s, "rot13").encode()))
    pieces = text[: sum(TOKENS) + len(TOKENS)].split([n + 1 for n in TOKENS])
    inputs = torch.zeros(len(TOKENS), max(TOKENS), dtype=torch.long)
    labels = torch.full_like(inputs, PADDING)
    for row, (piece, n) in enumerate(zip(pieces, TOKENS, strict=True)):
        inputs[row, :n], labels[row, :n] = piece[:-1], piece[1:]
    return inputs, labels


def token_gradients():
    """Return a bigram table's gradient of the whole batch, of the mean of four means, and with gradgate."""
    inputs, labels = padded_sentences()
    micro_batches = list(zip(inputs.split(1), labels.split(1), strict=True))
    table = nn.Embedding(256, 256, dtype=torch.float64)
    nn.init.zeros_(table.weight)

    def loss_fn(micro_batch):
        ids, targets = micro_batch
        loss = F.cross_entropy(table(ids).flatten(0, 1), targets.flatten(), ignore_index=PADDING)
        return loss, (targets != PADDING).sum()

    def gradient(loss):
        return torch.autograd.grad(loss, table.weight)[0]

    whole = gradient(loss_fn((inputs, labels))[0])
    mean_of_means = gradient(sum(loss_fn(micro_batch)[0] for micro_batch in micro_batches) / len(TOKENS))
    gg.Accumulator(torch.optim.SGD(table.parameters(), lr=1.0)).step_window(loss_fn, micro_batches)
    return whole, mean_of_means, -table.weight.detach()  # from zero with lr 1, the step is the gradient


def main():
    reference, *_ = one_epoch(32, 1, by_hand=True)
    knobs = {}
    print("One epoch of 1797 digits, and how far its weights are from those of 32 x 1")
    print(f"{'':8}{'micro-batches':15}{'updates':9}{'gradgate':10}loss / steps")
    for size, steps in KNOBS:
        weights, micro_batches, updates = one_epoch(size, steps, by_hand=False)
        exact = relative_error(weights, reference)
        by_hand = relative_error(one_epoch(size, steps, by_hand=True)[0], reference)
        knobs[size, steps] = (micro_batches, updates, exact, by_hand)
        print(f"{size:2} x {steps:<3}{micro_batches:<15}{updates:<9}{exact:<10.0e}{by_hand:.0e}")

    whole, mean_of_means, exact = token_gradients()
    weights = [sum(TOKENS) / (len(TOKENS) * n) for n in TOKENS]
    errors = {
        "mean of means": relative_error(mean_of_means, whole),
        "gradgate": relative_error(exact, whole),
    }
    print(f"\nFour micro-batches of one sentence, {TOKENS} tokens of {sum(TOKENS)} valid")
    print("  loss / 4 weighs a token " + ", ".join(f"{w:.2f}" for w in weights) + " times")
    for name, error in errors.items():
        print(f"  error of the gradient, {name:14}{error:.3g}")
    return {"knobs": knobs, "token_weights": weights, "token_errors": errors}


if __name__ == "__main__":
    main()
