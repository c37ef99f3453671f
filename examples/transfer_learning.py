"""A feature extractor that has learned the digits 0 to 4 is frozen, and a new head learns 5 to 9 on its features.
``requires_grad_(False)`` freezes the extractor's weights, but not its batch norms: in training mode, they keep
updating their statistics, and the old head gets features that it was not trained on. This does no harm if the new
images look like the old ones. It does much harm if they come from another scanner. With ``gg.frozen``, the
extractor stays bit-identical; ``extractor.eval()`` after each ``model.train()`` works too. Training the extractor
makes it forget the old digits.

Freezing in either way skips the extractor's backward pass, and stores no activations except the features.
"""

import copy

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import gradgate as gg
from gradgate.planning import peak_memory

TRAINED, BATCH = 600, 50  # the other 300 images of each set of five digits are test data
SCANNERS = {"from the same scanner": lambda x: x, "from another: pale, on white": lambda x: 1 - x / 2}


def all_trained(extractor):
    pass


def requires_no_grad(extractor):
    extractor.requires_grad_(False)


def frozen(extractor):
    gg.frozen(extractor)  # returns a handle; handle.unfreeze() undoes it


def convolutions():
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
    ).double()


def new_head():
    return nn.Linear(256, 5).double()


def train(model, images, labels):
    model.train()
    optimizer = torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    for _ in range(5):
        for rows in torch.randperm(TRAINED).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(model(images[rows]), labels[rows]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(model, images, labels):
    return (model.eval()(images[TRAINED:]).argmax(1) == labels[TRAINED:]).double().mean().item()


def drift(extractor, before):
    """Return the largest move of a running mean, in standard deviations of the old statistics."""
    norms = [(extractor[index], before[index]) for index in (1, 4)]
    return max(
        ((new.running_mean - old.running_mean).abs() / old.running_var.sqrt()).max().item()
        for new, old in norms
    )


def cost(way, images, labels):
    """Return the FLOP of one backward pass, and the bytes saved for it."""
    way(extractor := convolutions())
    model = nn.Sequential(extractor, new_head())
    with peak_memory() as memory:
        loss = F.cross_entropy(model(images[:BATCH]), labels[:BATCH])
        kept_bytes = memory.live_bytes
    with FlopCounterMode(display=False) as work:
        loss.backward()
    return work.get_total_flops(), kept_bytes


def main():
    torch.manual_seed(0)
    images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    images = images.reshape(-1, 1, 8, 8) / 16
    old, new = ((images[chosen], labels[chosen] % 5) for chosen in (labels < 5, labels >= 5))
    before, old_head = convolutions(), new_head()
    train(nn.Sequential(before, old_head), *old)
    figures = {"before": accuracy(nn.Sequential(before, old_head), *old)}
    print(f"accuracy on 0 to 4 before: {figures['before']:.1%}")
    for scanner, scanned in SCANNERS.items():
        print(f"\n{f'5 to 9 {scanner}':37}{'0 to 4':9}{'5 to 9':9}running means moved by")
        for way in (all_trained, requires_no_grad, frozen):
            torch.manual_seed(1)
            way(extractor := copy.deepcopy(before))
            head = new_head()
            train(nn.Sequential(extractor, head), scanned(new[0]), new[1])
            old_accuracy = accuracy(nn.Sequential(extractor, old_head), *old)
            new_accuracy = accuracy(nn.Sequential(extractor, head), scanned(new[0]), new[1])
            moved = drift(extractor, before)
            figures[scanner, way.__name__] = old_accuracy, new_accuracy, moved
            print(
                f"  {way.__name__:35}{old_accuracy:<9.1%}{new_accuracy:<9.1%}{moved:.2g} standard deviations"
            )
    print(f"\n{f'a pass over {BATCH} images':37}{'backward':18}saved for it")
    for way in (all_trained, requires_no_grad, frozen):
        flops, kept = figures["cost", way.__name__] = cost(way, *old)
        print(f"  {way.__name__:35}{f'{flops / 1e6:.2f} MFLOP':18}{kept / 1e6:.2f} MB")
    return figures


if __name__ == "__main__":
    main()
