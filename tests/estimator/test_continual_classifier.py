"""A table and labels of your own: task after task, with names, doubts and alarms, to disk and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.datasets import load_digits, load_wine
from sklearn.model_selection import train_test_split

import ibpwf
from ibpwf import ContinualClassifier, Learner, models
from ibpwf.cli.forget import Forget
from ibpwf.errors import InputError, StoreError
from ibpwf.inference.novelty import Novelty
from ibpwf.lab.data.tasks import Scenario
from ibpwf.training.checkpoint import Checkpoint

NAMES = np.array(["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])
QUICK: dict[str, Any] = {
    "hidden": (40,),
    "epochs": 4,
    "learning_rate": 2e-3,
    "settings": {"inference.features.width": 300},
    "device": "cpu",
}
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def table() -> tuple[Array, Array, Array, Array]:
    """Digits: training and test rows, training and test labels."""
    x, y = load_digits(return_X_y=True)
    made: list[Array] = train_test_split(x, y, stratify=y, random_state=0)
    return made[0], made[1], made[2], made[3]


@pytest.fixture(scope="module")
def three_tasks(table: tuple[Array, Array, Array, Array]) -> ContinualClassifier:
    """Zero and one, two and three, four and five, by their English names, with nothing set that tells on accuracy."""
    x, _, y, _ = table
    classifier = ContinualClassifier(device="cpu")
    for task, (low, name) in enumerate([(0, "low"), (2, "middle"), (4, "high")]):
        mine = np.isin(y, (low, low + 1))
        classifier.learn(x[mine], NAMES[y[mine]], task=name)
        assert len(classifier.tasks_) == task + 1
    return classifier


def known(table: tuple[Array, Array, Array, Array]) -> tuple[Array, Array]:
    _, x, _, y = table
    return x[y < 6], y[y < 6]


def test_names_come_out_with_the_task_given_and_inferred(
    three_tasks: ContinualClassifier, table: tuple[Array, Array, Array, Array]
) -> None:
    x, y = known(table)
    assert three_tasks.tasks_ == ["low", "middle", "high"]
    assert three_tasks.classes_.tolist() == sorted(NAMES[:6])
    assert three_tasks.score(x, NAMES[y]) > 0.95
    assert three_tasks.score(x, NAMES[y], task=y // 2) > 0.98
    by_name = np.array(["low", "middle", "high"])[y // 2]
    np.testing.assert_array_equal(three_tasks.predict(x, task=by_name), three_tasks.predict(x, task=y // 2))
    assert np.mean(three_tasks.predict_task(x) == by_name) > 0.96
    given = three_tasks.predict_proba(x, task="middle")
    assert set(three_tasks.predict(x, task="middle")) <= {"two", "three"}
    np.testing.assert_array_equal(given[:, ~np.isin(three_tasks.classes_, ["two", "three"])], 0)
    with pytest.raises(InputError, match=r"unknown task 'hihg'. Did you mean 'high'"):
        three_tasks.predict(x, task="hihg")


def test_answers_for_an_old_task_stay_the_same_to_the_bit(table: tuple[Array, Array, Array, Array]) -> None:
    x, test, y, _ = table
    classifier = ContinualClassifier(**QUICK).fit(x[y < 2], y[y < 2])
    before, limit = classifier.predict_proba(test, task=0), classifier.novelty(test)
    classifier.learn(x[y >= 7] * 3 + 5, y[y >= 7])
    np.testing.assert_array_equal(classifier.predict_proba(test, task=0)[:, :2], before)
    assert np.all(classifier.novelty(test) <= limit)
    classifier.fit(x[y < 3], y[y < 3])
    assert classifier.tasks_ == ["task-1"]
    assert classifier.classes_.tolist() == [0, 1, 2]


def test_a_label_that_returns_has_the_sum_over_its_tasks(table: tuple[Array, Array, Array, Array]) -> None:
    x, _, y, _ = table
    classifier = ContinualClassifier(**QUICK)
    for labels in ([0, 1], [1, 2]):
        mine = np.isin(y, labels)
        classifier.partial_fit(x[mine], y[mine])
    p = classifier.learner_.predict(classifier._standardizer(x), marginal=True)
    assert p.classes == ((0, 0), (0, 1), (1, 1), (1, 2))
    found = classifier.predict_proba(x)
    parts = p.probabilities.numpy()
    np.testing.assert_allclose(found[:, 1], parts[:, 1] + parts[:, 2], rtol=1e-12)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-9)


def test_announced_classes_have_columns_before_they_come(table: tuple[Array, Array, Array, Array]) -> None:
    x, _, y, _ = table
    classifier = ContinualClassifier(**QUICK).partial_fit(x[y < 2], y[y < 2], classes=[0, 1, 2, 3])
    assert classifier.predict_proba(x).shape[1] == 4
    assert not classifier.predict_proba(x)[:, 2:].any()


def test_pandas_tables_keep_their_names_and_sparse_ones_their_answers(
    table: tuple[Array, Array, Array, Array],
) -> None:
    x, _, y, _ = table
    frame = pd.DataFrame(x, columns=[f"pixel {i}" for i in range(64)])
    target = pd.Series(NAMES[y])
    low = y < 2
    named = ContinualClassifier(**QUICK).learn(frame[low], target[low])
    plain = ContinualClassifier(**QUICK).learn(x[low], NAMES[y[low]])
    thin = ContinualClassifier(**QUICK).learn(sparse.csr_array(x[low]), NAMES[y[low]])
    assert named.feature_names_in_[0] == "pixel 0"
    np.testing.assert_array_equal(named.predict_proba(frame), plain.predict_proba(x))
    np.testing.assert_array_equal(thin.predict_proba(sparse.csr_matrix(x)), plain.predict_proba(x))
    with pytest.raises(ValueError, match="feature names should match"):
        named.predict(frame.rename(columns={"pixel 3": "colour"}))


def test_doubt_is_the_entropy_and_with_draws_the_mutual_information(
    three_tasks: ContinualClassifier, table: tuple[Array, Array, Array, Array]
) -> None:
    x, _ = known(table)
    p = three_tasks.predict_proba(x)
    expected = -(p * np.log(p, out=np.zeros_like(p), where=p > 0)).sum(1)
    np.testing.assert_allclose(three_tasks.uncertainty(x), expected, atol=1e-12)
    information = three_tasks.uncertainty(x, posterior_samples=20)
    np.testing.assert_array_equal(information, three_tasks.uncertainty(x, posterior_samples=20))
    assert np.all((information >= 0) & (information <= np.log(6)))


def test_alarms_are_as_rare_as_stated_on_unseen_rows_and_sound_for_noise(
    three_tasks: ContinualClassifier, table: tuple[Array, Array, Array, Array]
) -> None:
    x, _ = known(table)
    assert three_tasks.is_novel(x).mean() < 0.03
    noise = np.random.default_rng(0).uniform(0, 16, (200, 64))
    assert three_tasks.is_novel(noise).mean() > 0.98


def test_the_folder_gives_back_the_whole_classifier(table: tuple[Array, Array, Array, Array], tmp_path: Path) -> None:
    x, test, y, _ = table
    frame = pd.DataFrame(x, columns=[f"pixel {i}" for i in range(64)])
    first = ContinualClassifier(**QUICK, random_state=np.random.RandomState(7))
    first.learn(frame[y < 2], NAMES[y[y < 2]], task="low")
    first.save(tmp_path / "model")
    again = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert again.get_params() == {**first.get_params(), "random_state": first.learner_.seed}
    assert again.tasks_ == ["low"]
    assert again.feature_names_in_.tolist() == first.feature_names_in_.tolist()
    unseen = pd.DataFrame(test, columns=frame.columns)
    for one in (first, again):
        one.learn(frame[y > 7], NAMES[y[y > 7]])
    for answer in ("predict", "predict_proba", "predict_task", "novelty", "uncertainty"):
        np.testing.assert_array_equal(getattr(first, answer)(unseen), getattr(again, answer)(unseen))


def test_whatever_was_saved_comes_back_as_what_it_was(tmp_path: Path) -> None:
    """Wine's features have scales from 0.1 to 1,000: without its standardization a classifier would be lost."""
    x, y = load_wine(return_X_y=True)
    classifier = ContinualClassifier(device="cpu", settings={"inference.features.width": 200}).fit(x, y)
    assert classifier.score(x, y) > 0.98
    classifier.save(tmp_path / "model")
    with ibpwf.open_model(tmp_path / "model", device="cpu") as held:
        pass
    for loaded in (ibpwf.load(tmp_path / "model", device="cpu"), held):
        assert type(loaded) is ContinualClassifier
        for answer in ("predict", "predict_proba", "predict_task", "novelty", "uncertainty"):
            np.testing.assert_array_equal(getattr(loaded, answer)(x), getattr(classifier, answer)(x))
    with pytest.raises(StoreError, match=r"holds a ContinualClassifier; read it with ibpwf\.load"):
        Learner.load(tmp_path / "model")


class Passes:
    """Counts the rows that run through each task's network."""

    def __init__(self, classifier: ContinualClassifier) -> None:
        self.rows = 0
        self.model = classifier.learner_.model
        self.logits = self.model.logits

    def __enter__(self) -> Passes:
        def counted(x: Any, task: int, *views: Any) -> Any:
            self.rows += len(x)
            return self.logits(x, task, *views)

        self.model.logits = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        del self.model.logits


def test_a_label_costs_one_pass_where_the_task_is_clear_and_is_the_likeliest_all_the_same(
    three_tasks: ContinualClassifier, table: tuple[Array, Array, Array, Array]
) -> None:
    x, _ = known(table)
    with Passes(three_tasks) as asked:
        likely = three_tasks.predict_proba(x)
    assert asked.rows == 3 * len(x)
    with Passes(three_tasks) as asked:
        labels = three_tasks.predict(x)
    np.testing.assert_array_equal(labels, three_tasks.classes_[likely.argmax(1)])
    assert len(x) <= asked.rows < 1.3 * len(x)
    sure = three_tasks.learner_.predict(three_tasks._standardizer(x)).task_probabilities.numpy().max(1) > 1 - 1e-6
    with Passes(three_tasks) as asked:
        three_tasks.predict(x[sure])
    assert sure.mean() > 0.5
    assert asked.rows == sure.sum(), "every row through one network only"
    # Rows of no task at all, which several may claim, are answered as by all tasks together.
    noise = np.random.default_rng(0).uniform(0, 16, (300, 64))
    expected = three_tasks.classes_[three_tasks.predict_proba(noise).argmax(1)]
    np.testing.assert_array_equal(three_tasks.predict(noise), expected)


def test_a_label_of_several_tasks_wins_by_the_sum_over_them(table: tuple[Array, Array, Array, Array]) -> None:
    x, test, y, _ = table
    classifier = ContinualClassifier(**{**QUICK, "hidden": (20,), "epochs": 4})
    for labels in ([0, 1], [1, 2], [2, 0, 3]):
        mine = np.isin(y, labels)
        classifier.partial_fit(x[mine], y[mine])
    for rows in (test, np.random.default_rng(1).uniform(0, 16, (300, 64))):
        expected = classifier.classes_[classifier.predict_proba(rows).argmax(1)]
        np.testing.assert_array_equal(classifier.predict(rows), expected)


def test_a_folder_of_a_plain_learner_is_refused(digits: Scenario, tmp_path: Path) -> None:
    Learner(models.mlp(64, [8], 2)).save(tmp_path / "model")
    with pytest.raises(StoreError, match=r"holds no ContinualClassifier; read it with ibpwf.load"):
        ContinualClassifier.load(tmp_path / "model")


def test_what_cannot_be_learnt_is_refused_and_changes_nothing(
    table: tuple[Array, Array, Array, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    x, test, y, _ = table
    classifier = ContinualClassifier(**QUICK).fit(x[y < 2], y[y < 2])
    before = classifier.predict_proba(test)
    with pytest.raises(InputError, match="y holds text, earlier tasks had whole numbers"):
        classifier.learn(x[y > 7], NAMES[y[y > 7]])
    with pytest.raises(InputError, match="a task named 'task-1' has been learnt already"):
        classifier.learn(x[y > 7], y[y > 7], task="task-1")

    def interrupted(self: Novelty, batches: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Novelty, "calibrate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        classifier.learn(x[y > 7], y[y > 7])
    monkeypatch.undo()
    np.testing.assert_array_equal(classifier.predict_proba(test), before)
    fresh = ContinualClassifier(**QUICK).fit(x[y < 2], y[y < 2])
    for one in (classifier, fresh):
        one.learn(x[y > 7], y[y > 7])
    np.testing.assert_array_equal(classifier.predict_proba(test), fresh.predict_proba(test))


def test_importing_the_package_waits_for_neither_scikit_learn_nor_torch() -> None:
    code = "import sys, ibpwf; print(sorted({'sklearn', 'torch', 'pandas'} & set(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


def test_a_forgotten_task_is_gone_and_the_others_answer_as_before(
    three_tasks: ContinualClassifier, table: tuple[Array, Array, Array, Array], tmp_path: Path
) -> None:
    x, _ = known(table)
    three_tasks.save(tmp_path / "model")
    left = np.isin(three_tasks.classes_, ["zero", "one", "four", "five"])
    before = three_tasks.predict_proba(x, task="high")[:, left]
    here = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert here.forget("middle").removed.keys() == {"hidden1"}
    Forget(model=tmp_path / "model", task="middle").run()
    there = ContinualClassifier.load(tmp_path / "model", device="cpu")
    for classifier in (here, there):
        assert classifier.tasks_ == ["low", "high"]
        assert classifier.classes_.tolist() == ["five", "four", "one", "zero"]
        np.testing.assert_array_equal(classifier.predict_proba(x, task="high"), before)
        assert set(classifier.predict_task(x)) <= {"low", "high"}
    np.testing.assert_array_equal(here.novelty(x), there.novelty(x))
    here.forget(0)
    with pytest.raises(InputError, match="task 'high' is the only one"):
        here.forget("high")
    Forget(model=tmp_path / "model", task="low").run()
    with pytest.raises(InputError, match="task 'high' is the only one"):
        Forget(model=tmp_path / "model", task="high").run()


def test_answers_say_all_of_it_at_once(
    three_tasks: ContinualClassifier, table: tuple[Array, Array, Array, Array]
) -> None:
    x, _ = known(table)
    answers = three_tasks.prediction(x)
    np.testing.assert_array_equal(answers.labels, three_tasks.predict(x))
    np.testing.assert_array_equal(answers.probability, three_tasks.predict_proba(x).max(1))
    np.testing.assert_array_equal(answers.task, three_tasks.predict_task(x))
    np.testing.assert_array_equal(answers.entropy, three_tasks.uncertainty(x))
    np.testing.assert_array_equal(answers.is_novel, three_tasks.is_novel(x))
    assert answers.mutual_information is None
    drawn = three_tasks.prediction(x[:5], task="high", posterior_samples=3)
    assert set(drawn.labels) <= {"four", "five"}
    np.testing.assert_array_equal(
        drawn.mutual_information, three_tasks.uncertainty(x[:5], task="high", posterior_samples=3)
    )


def test_the_label_of_an_answer_is_one_of_the_task_it_names(
    three_tasks: ContinualClassifier, table: tuple[Array, Array, Array, Array]
) -> None:
    """Where several tasks claim a row, the likeliest may be undecided and another one sure of its label."""
    x, _ = known(table)
    rng = np.random.default_rng(0)
    noise = np.concatenate([(x + rng.permutation(x)) / 2 + rng.normal(0, 2, x.shape) for _ in range(6)])
    labels = {task: set(three_tasks.labels_of(task)) for task in three_tasks.tasks_}
    answers = three_tasks.prediction(noise)
    at_odds = [
        label not in labels[task] for label, task in zip(answers.labels, three_tasks.predict_task(noise), strict=True)
    ]
    assert any(at_odds), "rows for which it matters"
    for one in (
        answers,
        three_tasks.prediction(noise, posterior_samples=3),
        three_tasks.prediction(noise, task="high"),
    ):
        assert all(label in labels[task] for label, task in zip(one.labels, one.task, strict=True))
    np.testing.assert_array_equal(answers.labels, three_tasks.predict(noise))


def test_json_of_your_own_is_kept_through_saving_and_forgetting(
    three_tasks: ContinualClassifier, tmp_path: Path
) -> None:
    three_tasks.save(tmp_path / "model", extra={"columns": ["a", "b"]})
    again = ContinualClassifier.load(tmp_path / "model", device="cpu")
    assert again.extra_ == {"columns": ["a", "b"]}
    again.save(tmp_path / "model")
    Forget(model=tmp_path / "model", task="middle").run()
    assert ContinualClassifier.load(tmp_path / "model", device="cpu").extra_ == {"columns": ["a", "b"]}
    three_tasks.save(tmp_path / "other", extra={})
    assert ContinualClassifier.load(tmp_path / "other", device="cpu").extra_ == {}


def test_a_task_that_is_told_to_stop_is_kept_and_goes_on_to_the_same_bits(
    table: tuple[Array, Array, Array, Array], tmp_path: Path
) -> None:
    x, test, y, _ = table
    pair = y < 2
    steps = iter(range(1000))
    with pytest.raises(KeyboardInterrupt):
        ContinualClassifier(**QUICK).learn(
            x[pair], y[pair], callbacks=[Checkpoint(tmp_path / "model", stop=lambda: next(steps) == 5)]
        )
    went_on = ContinualClassifier(**QUICK).learn(
        x[pair], y[pair], callbacks=[Checkpoint(tmp_path / "model", resume=True)]
    )
    straight = ContinualClassifier(**QUICK).learn(x[pair], y[pair])
    np.testing.assert_array_equal(went_on.predict_proba(test), straight.predict_proba(test))
    other = ContinualClassifier(**{**QUICK, "epochs": 21})
    steps = iter(range(1000))
    with pytest.raises(KeyboardInterrupt):
        ContinualClassifier(**QUICK).learn(
            x[pair], y[pair], callbacks=[Checkpoint(tmp_path / "m", stop=lambda: next(steps) == 3)]
        )
    with pytest.raises(InputError, match="the model or a setting is not the same"):
        other.learn(x[pair], y[pair], callbacks=[Checkpoint(tmp_path / "m", resume=True)])
