"""What does it cost to fill only the owned parameters, with 1,000 of them?

``torch.autograd.backward(inputs=...)`` marks every node of the graph that leads to an input. The cost depends on
the number of parameter tensors and nodes, not on their size, so small tensors are the worst case. gradgate makes
the same call without asking each input whether it overrides torch's functions. The benefit is measured too: if the
optimizer owns half of the parameters, the backward pass of the other half is skipped.
"""

from functools import partial

import torch
from _alternate import alternate, arguments, report, table
from torch import Tensor, nn

from gradgate.accumulation._sums import backward

LAYERS = 500  # two tensors each


def chain(width: int) -> nn.ModuleList:
    return nn.ModuleList([nn.Linear(width, width) for _ in range(LAYERS)])


def main() -> None:
    question = "The cost of ownership with 1,000 parameter tensors"
    given = arguments(question)
    torch.set_num_threads(1)
    sections = []
    for width in (16, 64, 256):
        torch.manual_seed(0)
        layers, x = chain(width), torch.randn(8, width)
        parameters = list(layers.parameters())

        def forward(layers: nn.ModuleList = layers, x: Tensor = x) -> Tensor:
            for layer in layers:
                x = torch.tanh(layer(x))
            return x.mean()

        def plain(forward=forward, parameters=parameters) -> None:  # type: ignore[no-untyped-def]
            forward().backward()
            for parameter in parameters:
                parameter.grad = None

        def owned(forward=forward, parameters=parameters, inputs=parameters) -> None:  # type: ignore[no-untyped-def]
            torch.autograd.backward(forward(), inputs=[p for p in inputs if p.requires_grad])
            for parameter in parameters:
                parameter.grad = None

        def by_gradgate(forward=forward, parameters=parameters) -> None:  # type: ignore[no-untyped-def]
            loss = forward()
            backward(loss, torch.ones_like(loss), tuple(p for p in parameters if p.requires_grad), False)
            for parameter in parameters:
                parameter.grad = None

        results = alternate(
            {
                "backward()": plain,
                "backward(inputs=all), as gradgate calls it": by_gradgate,
                "backward(inputs=all)": owned,
                "backward(inputs=the last half)": partial(owned, inputs=parameters[LAYERS:]),
            },
            rounds=given.rounds or 60,
        )
        sections.append(table(f"width {width}, forward and backward", results))
    report(question, sections, given.write)


if __name__ == "__main__":
    main()
