"""Whatever numbers a user hands in become the tensors they stand for, or an error that names what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ibpwf.errors import InputError
from ibpwf.inputs import check_inputs, check_labels


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int16, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float64]
)
def test_numbers_of_any_kind_become_float32(dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1], [1, 0]]).to(dtype)
    made = check_inputs(x, None)
    assert made.dtype == torch.float32
    assert made.tolist() == [[0, 1], [1, 0]]


def test_finite_numbers_too_large_to_add_up_are_taken_and_infinities_that_cancel_are_not() -> None:
    assert check_inputs([[3e38, 3e38], [3e38, 0.0]], None)[0, 0] == torch.tensor(3e38)
    with pytest.raises(InputError, match="x holds inf in row 1"):
        check_inputs([[0.0, 1.0], [math.inf, -math.inf]], None)


def test_inputs_do_not_drag_a_gradient_along() -> None:
    x = torch.ones(2, 3, requires_grad=True) * 2
    assert not check_inputs(x, None).requires_grad


def test_arrays_with_negative_strides_or_another_order_are_read_as_they_look() -> None:
    array = np.asfortranarray(np.arange(12.0).reshape(4, 3))[::-1]
    assert check_inputs(array, None).tolist() == array.tolist()


@pytest.mark.parametrize("dtype", [">f4", ">i2", "<u4", "longdouble"])
def test_arrays_in_another_byte_order_or_a_longer_format_are_read_as_well(dtype: str) -> None:
    assert check_inputs(np.array([[1, 2], [3, 258]], dtype=dtype), None).tolist() == [[1, 2], [3, 258]]


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0, 2.0], r"x has shape \(2,\); give one example per row"),
        (3.0, r"x has shape \(\); give one example per row"),
        ([["a", "b"]], "x holds text; give numbers"),
        ([[1, 2], [3]], "x has rows of different lengths; give rows of equal length"),
        ([[1j, 2]], "x holds complex numbers; give numbers"),
        (torch.ones(2, 2, dtype=torch.complex64), "x holds torch.complex64; give real numbers"),
        ([[None, 1.0]], "x holds None, .* in row 0, column 0"),
        (np.zeros((0, 4)), "x is empty; a task needs examples"),
        ([[0.0, 0.0], [math.nan, 0.0]], "x holds nan in row 1; remove or replace"),
        ([[0.0], [0.0], [-math.inf]], "x holds -inf in row 2; remove or replace"),
        (np.array([[1e300, 0.0]]), "x holds 1e\\+300 in row 0; remove or replace"),
    ],
)
def test_inputs_that_cannot_be_examples_are_refused(x: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_inputs(x, None)


def test_examples_of_another_shape_than_before_are_refused() -> None:
    with pytest.raises(InputError, match=r"x has examples of shape \(3,\), earlier tasks had \(4,\); reshape x"):
        check_inputs(torch.ones(5, 3), (4,))


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_every_64_bit_label_survives(labels: list[int]) -> None:
    assert check_labels(labels, len(labels)).tolist() == labels
    assert check_labels(np.array(labels, dtype=np.int64), len(labels)).tolist() == labels


@given(st.lists(st.integers(-(2**53), 2**53), min_size=1, max_size=20))
def test_whole_numbers_in_floating_point_are_labels_too(labels: list[int]) -> None:
    assert check_labels(np.array(labels, dtype=np.float64), len(labels)).tolist() == labels


@pytest.mark.parametrize(
    ("y", "message"),
    [
        ([0.0, 1.5], r"y holds 1\.5, which is not a 64-bit integer; encode the labels as whole numbers"),
        ([0.0, math.nan], "y holds nan, which is not a 64-bit integer"),
        ([0.0, math.inf], "y holds inf, which is not a 64-bit integer"),
        ([0.0, 1e30], r"y holds 1e\+30, which is not a 64-bit integer"),
        (np.array([0, 2**63 + 1], dtype=np.uint64), "y holds 9223372036854775809, which is not a 64-bit integer"),
        (["cat", "dog"], "y holds text; encode the labels as whole numbers"),
        ([True, False], r"y holds torch\.bool; encode the labels as whole numbers"),
        (torch.tensor([1j, 2]), r"y holds torch\.complex64; encode the labels as whole numbers"),
        ([[0], [1]], r"y has shape \(2, 1\); give one integer label per example, shape \(N,\)"),
        ([0, 1, 2], "x has 2 examples but y has 3 labels; they must be as many"),
    ],
)
def test_labels_that_are_not_one_integer_per_example_are_refused(y: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_labels(y, 2)
