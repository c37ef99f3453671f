"""Train two small models on real data in three ways, and see which two agree.

The three ways are the whole batch at once, gradgate's micro-batches, and the usual hand-written loop over the same
micro-batches. All start from the same weights and see the same batches in the same order. The script prints a
table for each task and draws a picture. Every number in them is measured in this run.

    python examples/demo.py                     # about a minute on two cores
    python examples/demo.py --quick --seed 3    # a few seconds
    python examples/demo.py --dtype float32     # more rounding, the same result

The exit status is 0 if gradgate stayed within rounding of the whole batch, and 1 if it did not.
"""

import argparse
import sys
from pathlib import Path

import torch
from demo_parts.compare import compare
from demo_parts.digits import digits_task
from demo_parts.picture import draw
from demo_parts.planned import show_plan
from demo_parts.table import in_words, table
from demo_parts.text import text_task
from rich.console import Console

LEGEND = (
    "Distance: between the parameters of a run and those of the whole batch, divided by how far the latter have "
    "moved from the initial weights (Euclidean, over all parameters). Peak memory: the most bytes that tensors "
    "held at once, while a model was built and updated twice."
)


def main() -> int:
    options = parse()
    # In float64, rounding stays near 1e-14, so anything larger is an error, not noise.
    torch.set_default_dtype(getattr(torch, options.dtype))
    torch.set_num_threads(
        1
    )  # more threads gain little with such small tensors, and make times on a busy machine less comparable
    console = Console(highlight=False)
    console.print(f"Everything in {options.dtype}, seed {options.seed}, one thread.")
    comparisons = []
    for make_task in (digits_task, text_task):
        comparison = compare(make_task(seed=options.seed, quick=options.quick), console)
        console.print("", table(comparison), "", in_words(comparison), sep="\n")
        comparisons.append(comparison)
    show_plan(comparisons[-1].task, console)
    draw(comparisons, options.output)
    console.print(f"\n{LEGEND}\n\nPicture: {options.output}")
    return 0 if all(comparison.exact for comparison in comparisons) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="less data and two epochs; takes a few seconds")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the held-out data")
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    parser.add_argument("--output", type=Path, default=Path("out/demo.png"), help="path of the picture")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
