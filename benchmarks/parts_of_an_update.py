"""What does each part of an update cost, and what does gradgate save?

The tiny model's update is built up from the plain loop, one part at a time. Each variant differs from the one
before it by the part that it is named after. The last step is gradgate itself: what it adds is Python, the checks
and the delay of signals.
"""

from collections.abc import Callable
from functools import partial

import torch
from _alternate import Ratio, alternate, arguments, report
from _models import exact_update, loss_of, plain_update, tiny

import gradgate as gg
from gradgate.accumulation._gradients import multiply, total_norm
from gradgate.torch_compat import run_backward

PARTS = (
    "loss not divided",
    "backward pass started directly",
    "restricted to owned parameters",
    "losses read",
    "norm of the gradient",
    "one division of the sum",
)


def by_hand(parts: int, device: str) -> Callable[[], object]:
    """Return an update that has the first ``parts`` of the parts above."""
    torch.manual_seed(0)
    model, batches = tiny(device)
    parameters = tuple(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-4)
    seed, factor = torch.ones((), device=device), 1 / len(batches)
    inputs = parameters if parts >= 3 else ()

    def update() -> None:
        for batch in batches:
            loss = loss_of(model, batch)
            if parts >= 2:
                run_backward.use(
                    (loss,), (seed,), False, False, inputs, allow_unreachable=True, accumulate_grad=True
                )
            else:
                loss.backward()
            if parts >= 4:
                loss.item()
        gradients = [parameter.grad for parameter in parameters]
        if parts >= 5:
            total_norm(gradients)
        if parts >= 6:
            multiply(gradients, factor)
        optimizer.step()
        optimizer.zero_grad()

    return update


def rows(results: dict[str, Ratio]) -> list[str]:
    lines = ["| | against the plain loop | this part, µs per update |", "|---|---|---|"]
    first = next(iter(results.values())).seconds
    before = 1.0
    for name, result in results.items():
        lines.append(f"| {name} | {result.ratio:.3f} | {1e6 * first * (result.ratio - before):+.0f} |")
        before = result.ratio
    return lines


def main() -> None:
    question = "The parts of an update of the tiny model"
    given = arguments(question)
    if given.device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batches = tiny(given.device)
    plain = partial(plain_update, model, batches, torch.optim.SGD(model.parameters(), lr=1e-4))
    model, batches = tiny(given.device)
    accumulator = gg.Accumulator(torch.optim.SGD(model.parameters(), lr=1e-4))
    ways = {
        "plain loop, loss / k": plain,
        **{name: by_hand(number, given.device) for number, name in enumerate(PARTS, 1)},
        "gradgate": partial(exact_update, model, batches, accumulator),
    }
    results = alternate(ways, rounds=given.rounds or 400, device=given.device)
    report(question, ["\n".join(rows(results)) + "\n"], given.write)


if __name__ == "__main__":
    main()
