"""The finest control, in figures worked out by hand."""

import pytest

from tests.examples.test_examples import run


def test_a_factor_scales_sgd_and_not_adam_and_rows_stay_still_only_by_train_rows():
    figures, printed = run("part_of_a_flow")
    # The output is w0 w1: the gradients are w1 = 3 and w0 = 2, and SGD moves by lr times that.
    assert figures["SGD", "scaled_gradient"] == pytest.approx([0.01 * 0.1 * 3, 0.01 * 2])
    assert figures["SGD", "own_learning_rate"] == pytest.approx([0.01 * 0.1 * 3, 0.01 * 2])
    # Adam's first step is lr times the gradient's sign, whatever its size.
    assert figures["Adam", "scaled_gradient"] == pytest.approx([0.01, 0.01])
    assert figures["Adam", "own_learning_rate"] == pytest.approx([0.1 * 0.01, 0.01])
    # Two averages of 5 x 2 elements, or of the 2 x 2 that learn.
    assert figures["masked_gradient"] == ([0, 1, 2, 3, 4], 2 * 5 * 2)
    assert figures["train_rows"] == ([3, 4], 2 * 2 * 2)
    assert " SGD scaled_gradient the layers move by 0.003 and 0.02\n" in printed
    assert " Adam scaled_gradient the layers move by 0.01 and 0.01\n" in printed
    assert " Adam own_learning_rate the layers move by 0.001 and 0.01\n" in printed
    assert " masked_gradient rows [0, 1, 2, 3, 4] move, 20 elements of optimizer state\n" in printed
    assert " train_rows rows [3, 4] move, 8 elements of optimizer state\n" in printed
