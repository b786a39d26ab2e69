"""Features on the first task's scale, whatever later tasks bring."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from scipy import sparse

from ibpwf.preprocessing import Standardizer


def test_features_of_any_unit_come_to_one_scale() -> None:
    x = np.random.default_rng(0).normal([5, -3e6, 1e-9], [2, 1e5, 1e-10], (500, 3))
    z = Standardizer.fit(x)(x)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-5)
    assert np.all((z.std(0) > 0.6) & (z.std(0) < 1))
    assert np.abs(z).max() <= 4


def test_a_feature_that_hardly_varies_is_not_blown_up_and_a_constant_one_takes_the_usual_scale() -> None:
    x = np.random.default_rng(0).normal(0, 10, (1000, 4))
    x[:, 2] = 0
    x[0, 2] = 1  # once in a thousand rows
    x[:, 3] = 0.1 + 0.2
    made = Standardizer.fit(x)
    assert made(x)[0, 2] <= 4
    assert made.scale[3] == np.median(made.scale[:3])
    np.testing.assert_array_equal(Standardizer.fit(np.ones((5, 2))).scale, 1)


def test_values_far_outside_are_compressed_in_order_and_without_a_jump() -> None:
    made = Standardizer(np.zeros(1), np.ones(1))
    z = made(np.array([[4.999], [5.001], [50.0], [5e4], [-5e4], [1e300]]))[:, 0]
    assert np.all(np.diff(z[:4]) > 0)
    np.testing.assert_allclose(z[1] - z[0], 0.002, rtol=0.01)
    np.testing.assert_allclose(z[2], 5 * (1 + np.log(10)), rtol=1e-6)
    assert z[4] == -z[3]
    assert z[5] < 4000


def test_many_rows_and_sparse_ones_give_the_same_and_json_keeps_every_bit() -> None:
    x = sparse.random(20_000, 6, density=0.3, rng=np.random.default_rng(0), format="csr")
    dense = x.toarray()
    made = Standardizer.fit(x)
    np.testing.assert_allclose(made.mean, dense.mean(0))
    again = Standardizer.from_json(json.loads(json.dumps(made.to_json())))
    np.testing.assert_array_equal(again(dense), made(x))


@pytest.mark.parametrize("factor", [2.0**517, 2.0**1000, 2.0**-540, 2.0**-1000])
def test_features_whose_squares_no_float_holds_come_out_as_any_others(factor: float) -> None:
    x = np.random.default_rng(0).normal([5, -3], [2, 1], (200, 2))
    plain, extreme = Standardizer.fit(x), Standardizer.fit(x * [factor, 1])
    np.testing.assert_array_equal(extreme(x * [factor, 1]), plain(x))
    far = Standardizer(extreme.mean, extreme.scale)(np.array([[1.7e308, 1], [-1.7e308, 1]]))
    assert np.isfinite(far).all()
    assert far[0, 0] > far[1, 0]


def test_inputs_on_another_scale_are_warned_of_and_ordinary_ones_are_not() -> None:
    rng = np.random.default_rng(0)
    bytes_ = np.where(rng.random((50, 64)) < 0.7, 0, rng.integers(0, 256, (50, 64)))  # mostly black
    floats = bytes_ / 255
    for learnt, other, words in ((floats, bytes_, "go to 3e\\+02, far beyond"), (bytes_, floats, "far below")):
        made = Standardizer.fit(learnt)
        with pytest.warns(UserWarning, match=f"on another scale than what was learnt: .*{words}"):
            made(other)
        stored = Standardizer.from_json(json.loads(json.dumps(made.to_json())))
        with pytest.warns(UserWarning, match="on another scale"):
            stored(other)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made(learnt)
            made(learnt * 3 + 1)
            made(np.zeros((1, 64)))
            outlier = learnt.copy()
            outlier[0, 0] = 1e9
            made(outlier)
