"""A small mixture of experts. Its balancing loss multiplies two statistics of the whole batch: how often each
expert is chosen, and the expert's mean probability. Computed per micro-batch, this product is a different loss.
With the statistics as representations, it is the loss of the whole batch.
"""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

import gradgate as gg

EXPERTS, BATCH, MICRO_BATCH = 4, 256, 8


class Mixture(nn.Module):
    """Each digit goes to one of four experts. The expert's probability is the weight of its answer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.router = nn.Linear(64, EXPERTS)
        self.experts = nn.ModuleList(nn.Linear(64, 10) for _ in range(EXPERTS))
        self.double()

    def forward(self, x):
        probabilities = self.router(x).softmax(1)
        best, chosen = probabilities.max(1)
        answers = torch.stack([expert(x) for expert in self.experts], dim=1)
        answers = answers[torch.arange(len(x)), chosen] * best[:, None]
        return answers, probabilities, F.one_hot(chosen, EXPERTS)


def statistics(model, micro_batch):
    """Return the sums over a micro-batch that the loss needs."""
    x, y = micro_batch
    answers, probabilities, chosen = model(x)
    return {
        "cross_entropy": F.cross_entropy(answers, y, reduction="sum"),
        "tokens": torch.tensor(len(x)),
        "probability": probabilities.sum(0, keepdim=True),  # [1, experts]: a row for each micro-batch
        "chosen": chosen.sum(0, keepdim=True),
    }


def loss_fn(of_batch):
    """Return the cross entropy, plus the balancing loss of Switch Transformer (Fedus et al. 2021, equation 4)."""
    count = of_batch["tokens"].sum()
    share, probability = of_batch["chosen"].sum(0) / count, of_batch["probability"].sum(0) / count
    return of_batch["cross_entropy"].sum() / count + 0.1 * EXPERTS * (share * probability).sum()


def gradient_of(model, add):
    """Return the router's gradient that the optimizer receives from an update."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    received = []
    optimizer.register_step_pre_hook(
        lambda *_: received.extend(p.grad.clone().flatten() for p in model.router.parameters())
    )
    with gg.Accumulator(optimizer, model=model).update() as update:
        add(update)
    return torch.cat(received)


def main():
    digits = load_digits()
    batch = torch.from_numpy(digits.data[:BATCH] / 16), torch.from_numpy(digits.target[:BATCH])
    window = list(zip(*(each.split(MICRO_BATCH) for each in batch), strict=True))
    model = Mixture()

    def encode(micro_batch):
        return statistics(model, micro_batch)

    def per_micro_batch(update):
        for micro_batch in update.micro_batches(window):
            update.backward(loss_fn(encode(micro_batch)), count=len(micro_batch[0]))

    whole = torch.autograd.grad(loss_fn(encode(batch)), list(model.router.parameters()))
    whole = torch.cat([gradient.flatten() for gradient in whole])
    ways = {
        "statistics of the window": lambda update: update.backward_coupled(encode, window, loss_fn),
        "a loss per micro-batch": per_micro_batch,
    }
    figures = {}
    print(
        f"router's gradient of {BATCH} digits in micro-batches of {MICRO_BATCH}, beside that of the whole batch:"
    )
    for name, add in ways.items():
        figures[name] = float((gradient_of(model, add) - whole).abs().max() / whole.abs().max())
        print(f"  {name:>24}  off by {figures[name]:.0e} of its largest entry")
    return figures


if __name__ == "__main__":
    main()
