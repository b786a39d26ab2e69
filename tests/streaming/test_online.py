"""The online part against ridge regression on all rows at once."""

from __future__ import annotations

import numpy as np

from ibpwf.streaming.online import RIDGE, OnlineRidge


def test_without_forgetting_sums_of_batches_are_those_of_all_rows() -> None:
    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(200, 5)), chance.integers(0, 3, 200)
    online = OnlineRidge.new(5, 1.0, seed=0).learned(x, y)
    features = online._features(x)
    features[:, -online.labels.size :] = 0.0  # no label was known before the batch
    weights = np.linalg.solve(features.T @ features + RIDGE * np.eye(features.shape[1]), features.T @ np.eye(3)[y])
    asked = online._features(x) @ weights
    expected = np.clip(asked, 1e-3, None)
    expected /= expected.sum(1, keepdims=True)
    assert np.allclose(online.probabilities(x), expected, atol=1e-8)


def test_what_was_true_long_ago_is_forgotten() -> None:
    chance = np.random.default_rng(1)
    x = chance.normal(size=(4000, 3))
    y = (x[:, 0] > 0).astype(np.int64)
    online = OnlineRidge.new(3, 0.99, seed=0)
    for start in range(0, 2000, 50):
        online = online.learned(x[start : start + 50], y[start : start + 50])
    for start in range(2000, 4000, 50):
        online = online.learned(x[start : start + 50], 1 - y[start : start + 50])
    assert np.mean(online.probabilities(x).argmax(1) == 1 - y) > 0.9


def test_a_class_may_come_later_and_inputs_may_be_many() -> None:
    chance = np.random.default_rng(2)
    online = OnlineRidge.new(300, 0.999, seed=0).learned(chance.normal(size=(20, 300)), np.zeros(20, dtype=np.int64))
    online = online.learned(chance.normal(3, 1, size=(20, 300)), np.full(20, 4))
    assert online.probabilities(chance.normal(3, 1, size=(5, 300))).argmax(1).tolist() == [4] * 5
