"""Every figure that an example prints, against one worked out by hand."""

import functools
import importlib
import io
import math
import re
from collections import Counter
from contextlib import redirect_stdout
from itertools import pairwise
from pathlib import Path

import pytest

from tests.ranks.test_examples import printed_by

EXAMPLES = Path(__file__).parents[2] / "examples"
MEASURED = {"demo"}  # its figures are measured, not derived
RANKS = {"ddp", "fsdp2"}  # tests/ranks/test_examples.py starts them
NAMES = [
    pytest.param(name, marks=pytest.mark.slow) if name in RANKS else name
    for name in sorted({path.stem for path in EXAMPLES.glob("*.py")} - MEASURED)
]
MIB = 2**20


@functools.cache
def run(name):
    """Return what the example's main() returns, and what it prints with every run of spaces as one."""
    example = importlib.import_module(f"examples.{name}")
    with redirect_stdout(io.StringIO()) as printed:
        figures = example.main()
    return figures, re.sub(" +", " ", printed.getvalue())


def test_gradients_add_and_a_sum_is_no_mean():
    figures, printed = run("gradients_add")
    assert figures["sine"] == [1, 2]  # cos(0), twice
    # The mean of 2 (w x - 2x) x over x = (4, 2) at w = 1: (-32 - 8) / 2.
    assert figures["passes"] == [-20, -40, -60]
    assert figures["update_norm"] == 20
    assert figures["update_weight"] == pytest.approx(1 + 0.01 * 20)
    assert "The slope of sin(x) at x = 0, computed by backward:\n" in printed
    assert "after 1 x backward x.grad = 1\n after 2 x backward x.grad = 2\n" in printed
    for n, gradient in enumerate((-20, -40, -60), start=1):
        assert f"after {n} x backward weight.grad = {gradient} = {n} x -20\n" in printed
    assert "|gradient| = 20, the mean; weight 1 -> 1.2\n" in printed


def test_a_step_belongs_after_the_last_micro_batch_and_the_tail_needs_one():
    figures, printed = run("n_to_one_to_one")
    tail = 9 + 10
    assert figures == {
        "i % N == 0": ([1, 2 + 3 + 4 + 5, 6 + 7 + 8 + 9], 10),
        "(i + 1) % N == 0": ([1 + 2 + 3 + 4, 5 + 6 + 7 + 8], tail),
        "(i + 1) % N == 0, loss / N": ([10 / 4, 26 / 4], tail / 4),
        "gradgate": ([10 / 4, 26 / 4, tail / 2], 0),
    }
    assert "Micro-batches with gradients 1 to 10, N = 4\n" in printed
    assert "i % N == 0 1, 14, 30 10\n" in printed
    assert "(i + 1) % N == 0 10, 26 19\n" in printed
    assert "(i + 1) % N == 0, loss / N 2.5, 6.5 4.75\n" in printed
    assert "gradgate 2.5, 6.5, 9.5 0\n" in printed


def test_one_backward_over_a_list_takes_the_memory_of_the_whole_batch():
    figures, printed = run("one_backward_is_no_accumulation")
    assert "w = 1, x = (4, 2), y = 2x, mean squared error, SGD with lr 0.01\n" in printed
    for way in ("whole_batch", "summed_list"):
        assert figures[way]["gradients"] == [-20]
        assert figures[way]["weights"] == [1, pytest.approx(1.2)]
        # 32 layers keep 0.25 MiB each; loss, gradients and the temporaries of backward stay below 1 MiB.
        assert 8 * MIB < figures[way]["peak_bytes"] < 9 * MIB
        assert f"{way} -20 1 -> 1.2 {figures[way]['peak_bytes'] / MIB:.1f} MiB\n" in printed
    # By hand, each half goes in divided by 2; gradgate divides the sum at the end.
    for way, gradients in (("accumulated", [-32 / 2, (-32 - 8) / 2]), ("by_gradgate", [-32, -32 - 8])):
        assert figures[way]["gradients"] == gradients
        assert figures[way]["weights"] == [1, 1, pytest.approx(1.2)]
        assert 4 * MIB < figures[way]["peak_bytes"] < 5 * MIB
        shown = ", then ".join(f"{gradient:g}" for gradient in gradients)
        assert f"{way} {shown} 1 -> 1 -> 1.2 {figures[way]['peak_bytes'] / MIB:.1f} MiB\n" in printed


def test_a_graph_is_a_chain_of_nodes_that_backward_frees():
    figures, printed = run("what_is_a_graph")
    assert figures["chain"] == ["Mean", "Pow", "Sub", "Mul", "AccumulateGrad"]
    assert figures["leaf"] == {"weight": True, "loss": False}
    two_tensors = 2 * 4_000_000  # x for Mul, the difference for Pow
    assert figures["after forward"] == two_tensors
    assert figures["after backward, retained"] == two_tensors
    assert figures["after backward"] == 0
    assert figures["forward under no_grad"] == 0
    assert figures["gradient of two backwards"] == pytest.approx(2 * -2)  # 2 (w - 2) at w = 1, twice
    assert figures["third backward"] == "Trying to backward through the graph a second time"
    for line in (
        "weight: leaf True, grad_fn None",
        "loss: leaf False, grad_fn MeanBackward0",
        "Mean <- Pow <- Sub <- Mul <- AccumulateGrad",
        "x takes 4 MB. Mul saves x and Pow saves the difference until backward has used them:",
        " after forward 8 MB",
        " after backward, retained 8 MB",
        " after backward 0 MB",
        " forward under no_grad 0 MB",
        "Two backward passes through one graph add up: -4",
        "A third, after the graph was freed: Trying to backward through the graph a second time",
    ):
        assert line + "\n" in printed


def test_clearing_to_none_keeps_nothing_and_moves_nothing():
    figures, printed = run("clearing")
    decayed = [8, 8 / 2 + 8, 12 / 2 + 8]
    million_floats = 4_000_000
    assert figures["updates"] == {
        "none": ([8, 8, 8], 0),
        "zero": ([8, 8, 8], million_floats),
        "decay(0.5)": (decayed, million_floats),
        "none, momentum 0.5": (decayed, 0),
    }
    assert "a million weights, three updates of gradient 8, lr 1\n" in printed
    assert "none 8, 8, 8 0 MB\n zero 8, 8, 8 4 MB\n decay(0.5) 8, 12, 14 4 MB\n" in printed
    assert "none, momentum 0.5 8, 12, 14 0 MB\n" in printed

    # Adam's second step, after gradients 1 and 0: both averages decay, both corrections shrink.
    first, second = 0.9 * 0.1 / (1 - 0.9**2), 0.999 * 0.001 / (1 - 0.999**2)
    adam = -0.1 * first / (math.sqrt(second) + 1e-8)
    by_zero = {
        "SGD": 0,
        "SGD, weight decay 0.5": -0.1 * 0.5 * (1 - 0.1 * (1 + 0.5)),  # of the weight after one step
        "SGD, momentum 0.9": -0.1 * 0.9,
        "Adam": adam,
        "AdamW, weight decay 0.5": -0.1 * 0.5 * (1 * (1 - 0.1 * 0.5) - 0.1) + adam,
    }
    assert figures["idle"] == {name: (0, pytest.approx(moved, abs=1e-9)) for name, moved in by_zero.items()}
    for name, moved in by_zero.items():
        assert f"{name} 0 {moved:g}\n" in printed

    # Towards 2 the gradient is 20 (w - 2): cleared, each step takes off a fifth of the way.
    cleared = [2 - 0.8**n for n in (1, 2, 3)]
    added = [1.2, 1.2 + 0.01 * (20 + 16), 1.56 + 0.01 * (20 + 16 + 8.8)]
    assert figures["vanilla"] == {"cleared": pytest.approx(cleared), "never cleared": pytest.approx(added)}
    assert "cleared 1.2, 1.36, 1.488\n never cleared 1.2, 1.56, 2.008\n" in printed


def test_a_mean_loss_has_the_mean_gradient_and_the_rate_follows_the_batch():
    figures, printed = run("batch_and_devices")
    assert figures["items"] == [2 * -4 * 4, 2 * -2 * 2]
    assert figures["batch"] == {"mean": -40 / 2, "sum": -40}
    assert figures["updated"] == {"mean": pytest.approx(1.2), "sum": pytest.approx(1.2)}
    assert "gradients of two items: -32 and -8\n mean loss of both: -20\n" in printed
    assert " sum loss of both: -40\n" in printed
    assert printed.count("with gradgate, one at a time, lr 0.01: weight 1 -> 1.2\n") == 2

    # The distance to 2 shrinks by 20 lr in each step.
    four, one = 2 - (1 - 0.02) ** 4, 2 - (1 - 0.08)
    assert figures["steps"] == {
        "4 steps, lr 0.001": pytest.approx(four),
        "1 step, lr 0.004": pytest.approx(one),
    }
    assert "4 steps, lr 0.001: weight 1 -> 1.0776\n 1 step, lr 0.004: weight 1 -> 1.0800\n" in printed

    assert figures["rules"] == {
        "linear": (4096 / 256, pytest.approx([0.1, 0.4, 0.7, 1.0, 1.3, 1.6])),
        "sqrt": (math.sqrt(4096 / 256), pytest.approx([0.1, 0.16, 0.22, 0.28, 0.34, 0.4])),
    }
    assert "batch 256 -> 4096, learning rate 0.1, five updates of warm-up:\n" in printed
    assert "linear x 16 0.1, 0.4, 0.7, 1, 1.3, 1.6\n" in printed
    assert "sqrt x 4 0.1, 0.16, 0.22, 0.28, 0.34, 0.4\n" in printed


def test_two_knobs_with_one_product_give_the_same_weights():
    figures, printed = run("fine_tuning_batch_size")
    updates = math.ceil(1797 / 32)
    for (size, steps), (micro_batches, updated, exact, by_hand) in figures["knobs"].items():
        assert micro_batches == math.ceil(1797 / size)
        assert updated == updates
        assert exact < 1e-12  # float64, 57 updates
        # The last window holds 5 digits: one micro-batch of 8 x 4, two of 4 x 8. Alone among 57 updates
        # it comes out too small by hand, which is seen in the first or second digit of the weights.
        assert by_hand == 0 if steps == 1 else 0.03 < by_hand < 0.3
        assert f"{size} x {steps} {micro_batches} 57 {exact:.0e} {by_hand:.0e}\n" in printed
    assert "One epoch of 1797 digits, and how far its weights are from those of 32 x 1\n" in printed
    assert list(figures["knobs"]) == [(32, 1), (8, 4), (4, 8)]


def test_a_mean_of_means_weighs_tokens_by_the_company_they_keep():
    figures, printed = run("fine_tuning_batch_size")
    assert figures["token_weights"] == [106 / 12, 106 / 256, 106 / 32, 106 / 124]
    assert "one sentence, (3, 64, 8, 31) tokens of 106 valid\n" in printed
    assert "loss / 4 weighs a token 8.83, 0.41, 3.31, 0.85 times\n" in printed

    # A bigram table at zero predicts each of 256 bytes alike: a token a -> b of weight w adds w / 256
    # to all of row a, and takes w from column b.
    def gradient(weights):
        table = Counter()
        for weight, piece in zip(weights, pieces, strict=True):
            for a, b in pairwise(piece):
                table.update({(a, column): weight / 256 for column in range(256)})
                table[a, ord(b)] -= weight
        return table

    pieces = (
        "The ",
        "Zen of Python, by Tim Peters\n\nBeautiful is better than ugly.\nExpl",
        "icit is b",
        "etter than implicit.\nSimple is b",
    )
    right = gradient([1 / 106] * 4)
    wrong = gradient([1 / (4 * n) for n in (3, 64, 8, 31)])
    off = max(abs(wrong[at] - right[at]) for at in right) / max(map(abs, right.values()))
    assert figures["token_errors"]["mean of means"] == pytest.approx(off)
    assert f"error of the gradient, mean of means {off:.3g}\n" in printed
    assert figures["token_errors"]["gradgate"] < 1e-12  # float64
    assert f"error of the gradient, gradgate {figures['token_errors']['gradgate']:.3g}\n" in printed


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_answers_has_a_row_with_figures_that_the_example_prints(name):
    rows = (EXAMPLES / "README.md").read_text().splitlines()
    (row,) = [row for row in rows if f"[{name}.py]({name}.py)" in row]
    printed = (printed_by(name) if name in RANKS else run(name)[1]).replace("\n", " ")
    figures = re.findall(r"`(-?\d[^`]*)`", row.split("|")[3])
    assert figures
    for figure in figures:
        assert re.search(rf"(?<![-\d.]){re.escape(figure)}(?!\.?\d)", printed), figure


def test_a_plan_computes_less_padding_and_gives_the_same_gradient():
    figures, printed = run("planned_text")
    assert figures["characters"] < figures["columns"]["by plan"] < 0.75 * figures["columns"]["by hand"]
    assert figures["error"] < 1e-12
    assert figures["estimated"]
    assert figures["within_budget"]
    assert 0.98 < figures["measured"] < 1.02  # the plan's peak, and the gradients that the first passes make
    by_hand, by_plan = figures["columns"].values()
    assert f"columns computed: by hand {by_hand}, by plan {by_plan}\n" in printed


def test_a_thousand_images_in_the_memory_of_a_few():
    figures, printed = run("images_in_little_memory")
    sizes, (whole, split) = figures["sizes"], figures["peaks"]
    assert sum(sizes) == 1000
    assert max(sizes) - min(sizes) == 1
    assert figures["estimated"] <= figures["budget"] == 6 * MIB
    assert split < figures["budget"] < whole / 10
    assert figures["error"] < 1e-12
    assert "1000 samples in 14 micro-batches: 6 x 72, 8 x 71\n" in printed


def test_a_contrastive_loss_over_the_whole_batch_finds_more_pairs_than_one_per_micro_batch():
    figures, printed = run("contrastive_retrieval")
    whole, coupled, split = (
        figures[way] for way in ("whole batch", "backward_coupled", "loss per micro-batch")
    )
    assert coupled[0] == pytest.approx(whole[0], abs=0.01)  # float32, rounded in another order
    assert coupled[0] > split[0] + 0.03
    # 1024 codes of 64 numbers on each side take 0.5 MiB, as long as the loss needs them.
    assert coupled[1] < split[1] + 0.6 * MIB < 0.3 * whole[1]
    assert f"backward_coupled {coupled[0]:.1%} right, peak" in printed


def test_the_balancing_loss_of_experts_is_that_of_the_whole_batch():
    figures, printed = run("load_balancing")
    assert figures["statistics of the window"] < 1e-12
    assert figures["a loss per micro-batch"] > 1e-3
    assert "statistics of the window off by" in printed


def test_statistics_of_the_whole_batch_train_as_the_whole_batch_does():
    figures, printed = run("batch_statistics")
    assert figures["backward_coupled"] == pytest.approx(figures["whole batch"], rel=1e-9)
    assert figures["loss per micro-batch"] > 1.05 * figures["whole batch"]
    assert f"before {figures['before']:.2f}" in printed
