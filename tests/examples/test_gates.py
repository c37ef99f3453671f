"""Every figure of the examples on where gradient flows, against one worked out by hand."""

import importlib
import math

import torch

from tests.examples.test_examples import MIB, run

MB = 1_000_000


def test_a_detached_branch_is_not_in_the_slope_and_what_lies_only_before_it_gets_none():
    figures, printed = run("detach")
    value = 2**3 + 2 * 2  # z = 2
    slope, side_branch = 3 * 2**2 * 4, 2 * 4  # dz/dx = 4x
    before, behind = 5 * 2, 3 * 2  # the output is 5 * 3 * 2
    assert figures["slopes"] == {
        "no stop": (value, slope + side_branch),
        "z.detach()": (value, slope),
        "gg.stop_gradient(z)": (value, slope),
    }
    assert figures["gradients"] == {
        "no stop": [before, behind],
        "z.detach()": [None, behind],
        "gg.stop_gradient(z)": [None, behind],
    }
    assert "no stop 12 56\n z.detach() 12 48\n gg.stop_gradient(z) 12 48\n" in printed
    assert "no stop 10.0 6.0\n z.detach() None 6.0\n gg.stop_gradient(z) None 6.0\n" in printed


def test_freezing_the_middle_passes_the_gradient_and_saves_only_inputs_of_linear_layers():
    figures, printed = run("requires_grad_in_the_middle")
    layers, scalar = 4, 4  # each part's layers; the bytes of the loss
    # A trained part keeps the input and the output of each linear layer where GELU follows, the output of each
    # Tanh otherwise. The front's input is given, and so does not count; the square keeps the last output.
    front, part, square = 2 * layers - 1, 2 * layers, 1
    by_gelu = {
        "nothing_frozen": front + part + part + square,
        "front_frozen": part + part + square,
        "middle_frozen": front + layers + part + square,
        "middle_by_gradgate": front + layers + part + square,
        "detached_after_middle": part + square,
    }
    by_tanh = {
        "nothing_frozen": 3 * layers,
        "front_frozen": 1 + 2 * layers,  # the middle's input
        "middle_frozen": 3 * layers,
        "middle_by_gradgate": 3 * layers,
        "detached_after_middle": 1 + layers,
    }
    # The graph of front and middle stands until their output is detached, which would do with less.
    built_for_nothing = front + part + 1
    reached = {
        "nothing_frozen": [True, True, True],
        "front_frozen": [False, True, True],
        "middle_frozen": [True, False, True],
        "middle_by_gradgate": [True, False, True],
        "detached_after_middle": [False, False, True],
    }
    assert list(figures) == list(reached)
    for way, found in figures.items():
        assert found["reached"] == reached[way]
        for activation, kept in (("GELU", by_gelu[way]), ("Tanh", by_tanh[way])):
            kept_bytes, peak_bytes = found[activation]
            assert kept_bytes == kept * MIB + scalar
            if (way, activation) == ("detached_after_middle", "GELU"):
                assert peak_bytes == built_for_nothing * MIB
            else:  # beside what is kept, a gradient and what is computed from it: up to four activations
                assert (kept + 1) * MIB < peak_bytes < (kept + 4.5) * MIB
        answers = " ".join("yes" if one else "None" for one in found["reached"])
        gelu, tanh = (found[activation][1] / MIB for activation in ("GELU", "Tanh"))
        assert f" {way} {answers} {by_gelu[way]}, {gelu:.1f} {by_tanh[way]}, {tanh:.1f}\n" in printed


def test_no_grad_in_the_middle_is_a_detach_and_freezing_it_is_not():
    figures, printed = run("no_grad_in_the_middle")
    front, middle, back = 3 * 5, 2 * 5, 2 * 3  # the product of the two others
    assert figures == {
        "plain": ([front, middle, back], [True, True, True]),
        "no_grad": ([None, None, back], [True, True, True]),
        "detached": ([None, None, back], [True, True, True]),
        "frozen": ([front, None, back], [True, False, True]),
    }
    assert " plain 15.0 10.0 6.0 True True True\n no_grad None None 6.0 True True True\n" in printed
    assert " detached None None 6.0 True True True\n frozen 15.0 None 6.0 True False True\n" in printed


def test_what_the_optimizer_leaves_out_is_computed_unless_it_is_frozen_or_nobody_owns_it():
    figures, printed = run("the_optimizers_list")
    layer, head, activation = 500 * 500 * 4, 500 * 10 * 4, 100 * 500 * 4
    # Each product of a backward pass takes two operations for each weight and sample. All layers have one for
    # their weights and one for their input, except the first, whose input is data.
    products = {"head": 2 * 100 * 500 * 10, "layer": 2 * 100 * 500 * 500}
    whole_flops = 2 * products["head"] + 7 * products["layer"]
    # Four outputs of Tanh and that of the norm; the norm's mean and deviation; the logarithms of ten classes
    # for each sample, the loss, and what it was divided by.
    loss = 100 * 10 * 4 + 4 + 4
    whole_graph, head_graph = 5 * activation + 2 * 500 * 4 + loss, activation + loss
    trunk = 4 * layer
    expected = {
        "left out": (whole_graph, whole_flops, trunk + head, trunk, 2 * head, True),
        "lr=0": (whole_graph, whole_flops, trunk + head, 0, 2 * (trunk + head), True),
        "left out, gg.Accumulator": (whole_graph, products["head"], head, 0, 2 * head, True),
        "requires_grad_(False)": (head_graph, products["head"], head, 0, 2 * head, True),
        "gg.frozen": (head_graph, products["head"], head, 0, 2 * head, False),
    }
    assert list(figures) == list(expected)
    for way, (kept, flops, at_the_step, after, averages, norm_moved) in expected.items():
        assert figures[way] == {
            "bytes": (kept, at_the_step, after, averages),
            "backward_flops": flops,
            "norm_moved": norm_moved,
            "trunk_moved": 0,
        }
    for line in (
        "left out 1.01 352 4.02 4.00 0.04 moved 0",
        "lr=0 1.01 352 4.02 0.00 8.04 moved 0",
        "left out, gg.Accumulator 1.01 1 0.02 0.00 0.04 moved 0",
        "requires_grad_(False) 0.20 1 0.02 0.00 0.04 moved 0",
        "gg.frozen 0.20 1 0.02 0.00 0.04 still 0",
    ):
        assert f" {line}\n" in printed


def test_two_losses_are_kept_apart_by_hand_or_by_who_owns_what():
    figures, printed = run("two_losses")
    # The products for the weights and for the input of a layer cost the same, two operations for each weight
    # and sample. Each network has a first layer, whose input may be data, and a last one.
    g_first, g_last, d_first, d_last = (2 * 64 * n for n in (16 * 32, 32 * 16, 32 * 32, 32 * 1))
    generator = g_first + 2 * g_last
    only_weights, only_passing, both = d_first + 2 * d_last, d_first + d_last, 2 * d_first + 2 * d_last
    apart = only_weights + only_weights + only_passing + generator  # fake, real; then G's loss
    together = only_weights + both + generator + both + generator
    for way in ("as_pix2pix", "cleared_before_backward", "by_gradgate"):
        assert figures[way]["off"] == [0, 0]  # the same operations on the same numbers
        assert figures[way]["flops"] == (together if way == "cleared_before_backward" else apart)
        assert figures[way]["loss"] == figures["as_pix2pix"]["loss"] < 0.9 * math.log(2)
        mflop = figures[way]["flops"] / MB
        assert f" {way} 0 0 {figures[way]['loss']:.2f} {mflop:.2f}\n" in printed
    mixed = figures["cleared_after_the_step"]
    # G's own loss is 100 times the L1 distance, beside which D's is small; in D the two are of one size.
    assert 0.001 < mixed["off"][0] < 0.1 < mixed["off"][1]
    assert mixed["loss"] > 1.1 * math.log(2)  # worse than the discriminator that says one half to all
    assert mixed["flops"] == together
    of_g, of_d = (f"{one:.1g}" for one in mixed["off"])
    assert f" cleared_after_the_step {of_g} {of_d} {mixed['loss']:.2f} {together / MB:.2f}\n" in printed

    # D's loss is in G's gradient from the first update on, G's in that of D from the second.
    two_losses = importlib.import_module("examples.two_losses")
    (right_g, right_d), _ = two_losses.trained(two_losses.as_pix2pix, updates=1)
    (mixed_g, mixed_d), _ = two_losses.trained(two_losses.cleared_after_the_step, updates=1)
    assert torch.equal(mixed_d, right_d)
    assert not torch.equal(mixed_g, right_g)


def test_only_frozen_keeps_what_an_old_head_needs():
    figures, printed = run("transfer_learning")
    before = figures["before"]
    assert before > 0.9
    assert f"accuracy on 0 to 4 before: {before:.1%}\n" in printed
    same, other = "from the same scanner", "from another: pale, on white"
    for scanner in (same, other):
        for way in ("all_trained", "requires_no_grad", "frozen"):
            old_right, new_right, moved = figures[scanner, way]
            assert new_right > 0.9
            if way == "frozen":
                assert (old_right, moved) == (before, 0)
            else:
                assert moved > 0.05
            assert f" {way} {old_right:.1%} {new_right:.1%} {moved:.2g} standard deviations\n" in printed
    # 301 old digits: 3% are nine of them.
    assert figures[same, "requires_no_grad"][0] > before - 0.03 > figures[same, "all_trained"][0]
    assert figures[other, "requires_no_grad"][0] < before - 0.1
    assert figures[other, "all_trained"][0] < before - 0.2
    # Paper that is white, and not black, lifts a mean by more than the ink made it vary.
    assert figures[other, "requires_no_grad"][2] > 1 > 5 * figures[same, "requires_no_grad"][2]

    # 50 images of 64 pixels. A product of a convolution takes 2 x 3 x 3 operations for each pixel and pair of
    # channels, for the weights and, except in the first, for the input.
    first, second, head = (2 * 50 * n for n in (64 * 9 * 8, 64 * 9 * 8 * 16, 256 * 5))
    # In bytes, of 8 channels and of 16: the outputs of convolution and ReLU, the norm's means and deviations.
    pixels, doubles = 50 * 64, 8
    convolved = (2 * pixels * (8 + 16) + 2 * (8 + 16)) * doubles
    # The features; the logarithms of five classes for each image, the loss, and what it was divided by.
    kept = (50 * 256 + 50 * 5 + 1 + 1) * doubles
    assert figures["cost", "all_trained"] == (first + 2 * second + 2 * head, convolved + kept)
    assert " all_trained 15.46 MFLOP 1.33 MB\n" in printed
    for way in ("requires_no_grad", "frozen"):
        assert figures["cost", way] == (head, kept)
        assert f" {way} 0.13 MFLOP 0.10 MB\n" in printed
