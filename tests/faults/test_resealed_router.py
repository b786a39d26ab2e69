"""Folders of a router and its calibration, of the right digests and the wrong content: refused in one sentence."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from killed_learner import examples
from resealed import CHANGES, Change, Folder, apart, one_number, refused, tensor
from torch import Tensor, nn

import ibpwf
from ibpwf import Learner, Settings

SETTINGS = Settings(
    alpha=3.0,
    epochs=1,
    finetune_epochs=1,
    batch_size=16,
    inference="router",
    validation_fraction=0.2,
    **{"inference.features": "random", "inference.features.width": 9},
)


def fresh(**changes: Any) -> Learner:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 4))
    return Learner(net, SETTINGS.replace(**changes), seed=6, device="cpu")


def saved(learner: Learner, path: Path) -> Folder:
    for number in range(3):
        learner.learn(*examples(number), task=f"t{number}")
    learner.save(path)
    return Folder.read(path)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Three tasks with one sum for all."""
    return saved(fresh(), tmp_path_factory.mktemp("together") / "model")


@pytest.fixture(scope="module")
def each(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Three tasks with a sum each, in float32."""
    return saved(
        fresh(**{"inference.keep_sums_per_task": True, "inference.precision": "float32"}),
        tmp_path_factory.mktemp("each") / "model",
    )


def test_folders_that_are_only_sealed_again_answer(together: Folder, each: Folder, tmp_path: Path) -> None:
    for number, folder in enumerate((together, each)):
        folder.write(tmp_path / f"model-{number}")
        assert apart(tmp_path / f"model-{number}").startswith("answers")


# Calibration


def calibration(**values: Any) -> Change:
    def act(folder: Folder) -> None:
        folder.content["state"]["tasks"][1]["calibration"].update(values)

    return act


def left_out(name: str) -> Change:
    return lambda folder: folder.content["state"]["tasks"][1]["calibration"].pop(name)


def limits(change: Callable[[list[float]], list[Any]]) -> Change:
    def act(folder: Folder) -> None:
        found = folder.content["state"]["tasks"][1]["calibration"]
        found["limits"] = change(found["limits"])

    return act


NAN, INF = float("nan"), float("inf")
CALIBRATIONS: dict[str, Change] = {
    **{
        f"{name} of {value!r}": calibration(**{name: value})
        for name in ("temperature", "router", "experts")
        for value in (NAN, INF, -INF, -1.0, -1e-9, 1e9, 1e308, "1.0", [1.0], True)
    },
    "a temperature of nothing": calibration(temperature=0.0),
    "no temperature": calibration(temperature=None),
    "a router of no weight": calibration(router=0.0),
    "a router that is not there": calibration(router=None),
    "experts that are not there": calibration(experts=None),
    **{f"{name} left out": left_out(name) for name in ("temperature", "router", "experts", "classes", "limits")},
    "a number too many": calibration(more=1.0),
    "of no class": calibration(classes=0),
    "of fewer classes than there are": calibration(classes=3),
    "of more classes than there were": calibration(classes=5),
    "of negative classes": calibration(classes=-4),
    "of half a class": calibration(classes=4.5),
    "no limits": limits(lambda found: []),
    "limits that are not there": calibration(limits=None),
    "a limit too few": limits(lambda found: found[:-1]),
    "a limit too many": limits(lambda found: [*found, found[-1]]),
    "limits that fall": limits(lambda found: found[::-1]),
    "two limits in the wrong order": limits(lambda found: [found[0] + 99, *found[1:]]),
    "a limit of NaN": limits(lambda found: [*found[:-1], NAN]),
    "an infinite limit": limits(lambda found: [*found[:-1], INF]),
    "a limit of minus infinity": limits(lambda found: [-INF, *found[1:]]),
    "limits beyond calculation": limits(lambda found: [-1e308, *found[1:-1], 1e308]),
    "a limit of text": limits(lambda found: [*found[:-1], "9"]),
    "an opinion of one weight": calibration(opinion=[1.0]),
    "weights of an opinion that is not there": calibration(opinion=[1.0, 1.0]),
    "a list": lambda folder: folder.content["state"]["tasks"][1].update(calibration=[1.0]),
    "a number": lambda folder: folder.content["state"]["tasks"][1].update(calibration=1.0),
}


@pytest.mark.parametrize("evil", CALIBRATIONS)
def test_a_calibration_that_cannot_be_is_refused(together: Folder, tmp_path: Path, evil: str) -> None:
    if any(word in evil for word in ("nan", "inf", "NaN", "infinit")):
        said = refused_json(together, CALIBRATIONS[evil], tmp_path / "model")
    else:
        said = refused(together, CALIBRATIONS[evil], tmp_path / "model")
    assert "model" in said


def refused_json(folder: Folder, change: Change, path: Path) -> str:
    """JSON has no word for these numbers, but Python writes and may read them."""
    changed = folder.changed()
    change(changed)
    assert "NaN" in json.dumps(changed.content) or "Infinity" in json.dumps(changed.content)
    return refused(folder, change, path)


def test_a_calibration_of_a_router_beside_gaussians_is_refused(tmp_path: Path) -> None:
    folder = saved(fresh(inference="gaussian"), tmp_path / "gaussian")
    known = folder.content["state"]["tasks"][1]["calibration"]
    assert known == {
        "temperature": known["temperature"],
        "router": None,
        "experts": None,
        "classes": 0,
        "limits": None,
        "alone": None,
        "nearness": None,
        "losses": None,
        "opinion": None,
    }
    whole = {"alone": 1.0, "router": 1.0, "experts": 0.5, "classes": 4, "limits": [*map(float, range(9))]}
    assert "9 limits in its calibration, not 0" in refused(folder, calibration(**whole), tmp_path / "model")
    losses = calibration(losses=[0.0] * 11)
    assert "11 losses in its calibration, not 0" in refused(folder, losses, tmp_path / "model")


def test_a_folder_may_have_no_calibrations(together: Folder, tmp_path: Path) -> None:
    folder = together.changed()
    for task in folder.content["state"]["tasks"]:
        task["calibration"] = None
    folder.write(tmp_path / "model")
    loaded = ibpwf.load(tmp_path / "model", device="cpu")
    assert isinstance(loaded, Learner)
    assert loaded.method.calibrations == [None, None, None]
    assert len(loaded.predict(examples(0)[0])) == 64


def test_after_a_task_was_forgotten_later_ones_may_have_been_calibrated_among_more_classes(tmp_path: Path) -> None:
    learner = fresh(**{"inference.keep_sums_per_task": True})
    saved(learner, tmp_path / "model")
    learner.forget("t0")
    learner.save(tmp_path / "model")
    loaded = ibpwf.load(tmp_path / "model", device="cpu")
    assert isinstance(loaded, Learner)
    assert [one and one.classes for one in loaded.method.calibrations] == [4, 6]
    folder = Folder.read(tmp_path / "model")
    assert "among 3 classes, and there were 4" in refused(folder, calibration(classes=3), tmp_path / "other")


# The router's sums


def counts(value: Any) -> Change:
    return lambda folder: folder.content["state"]["tasks"][1].update(inference={"counts": value})


def means(change: Callable[[Tensor], Tensor]) -> Change:
    return tensor("task-0001", "inference/means", change)


HARM: dict[str, Callable[[Tensor], Tensor]] = {
    "too short": lambda sums: sums[:-1],
    "too long": lambda sums: torch.cat([sums, sums[-1:]]),
    "in another shape": lambda sums: sums.unsqueeze(0),
    "a single number": lambda sums: sums.reshape(-1)[0].reshape(()),
    "none": lambda sums: sums[:0],
    "NaN": one_number(NAN),
    "infinite": one_number(INF),
    "too large": lambda sums: one_number(1e300 if sums.dtype == torch.float64 else 3e38)(sums),
    "half precision": lambda sums: sums.half(),
    "whole numbers": lambda sums: sums.long(),
}
SQUARES: dict[str, Callable[[Tensor], Tensor]] = {"negative": lambda sums: -sums, "one negative": one_number(-50.0)}

BOTH: dict[str, Change] = {
    **{
        f"counts of {value!r}": counts(value)
        for value in (
            *([], [9], [9, 9, 9], [9, 0], [9, -9], [9, 9.5], [9, "9"], [9, True], [9, None]),
            *(9, None, "99", {}),
        )
    },
    "counts beyond all numbers": counts([9, 1 << 60]),
    "no counts": lambda folder: folder.content["state"]["tasks"][1].update(inference={}),
    **{f"means {what}": means(change) for what, change in HARM.items()},
    "means in float32": means(lambda mean: mean.float()),
    "means of a class too few": means(lambda mean: mean[:1]),
    "means of another number of features": means(lambda mean: mean[:, :-1]),
    "no means": lambda folder: folder.parts["task-0001"].pop("inference/means"),
    "a tensor that nothing reads": lambda folder: folder.parts["task-0001"].update({"inference/more": torch.ones(2)}),
    "features of another width": lambda folder: folder.parts["features"].update(
        {name: tensor[..., :-1] for name, tensor in folder.parts["features"].items()}
    ),
    "features that are not there": lambda folder: folder.parts.pop("features"),
    "a bias alone": lambda folder: folder.parts["features"].pop("weight"),
    "features of NaN": tensor("features", "bias", one_number(NAN)),
}

TOGETHER: dict[str, Change] = {
    **{f"sums {what}": tensor("inference", "scatter", change) for what, change in (HARM | SQUARES).items()},
    "no sums": lambda folder: folder.parts.pop("inference"),
    "sums under another name": lambda folder: folder.parts.update(inference={"sums": torch.ones(45)}),
    "sums and more": lambda folder: folder.parts["inference"].update(more=torch.ones(45)),
    "sums for all and for every task": lambda folder: [
        folder.parts[f"task-000{task}"].update({"inference/scatter": folder.parts["inference"]["scatter"]})
        for task in range(3)
    ],
    "columns that fit counts and means, not the task": lambda folder: (
        counts([9])(folder),
        means(lambda mean: mean[:1])(folder),
    ),
}

EACH: dict[str, Change] = {
    **{f"sums {what}": tensor("task-0001", "inference/scatter", c) for what, c in (HARM | SQUARES).items()},
    "a task without sums": lambda folder: folder.parts["task-0001"].pop("inference/scatter"),
    "sums for all beside those of every task": lambda folder: folder.parts.update(
        inference={"scatter": folder.parts["task-0001"]["inference/scatter"]}
    ),
    "means whose squares are beyond float32": means(lambda mean: mean * 1e30),
}


@pytest.mark.parametrize("evil", [*BOTH, *TOGETHER])
def test_a_router_of_one_sum_that_does_not_fit_together_is_refused(
    together: Folder, tmp_path: Path, evil: str
) -> None:
    refused(together, (BOTH | TOGETHER)[evil], tmp_path / "model")


@pytest.mark.parametrize("evil", [*BOTH, *EACH])
def test_a_router_of_a_sum_per_task_that_does_not_fit_together_is_refused(
    each: Folder, tmp_path: Path, evil: str
) -> None:
    refused(each, (BOTH | EACH)[evil], tmp_path / "model")


# Patch features


@pytest.fixture(scope="module")
def of_patches(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """One task of images, its features two patches in 2×2 cells: 16 numbers."""
    path = tmp_path_factory.mktemp("patches") / "model"
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))
    settings = SETTINGS.replace(
        **{"inference.features": "patches", "inference.features.filters": 2, "inference.features.grid": 2}
    )
    learner = Learner(net, settings, device="cpu")
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    learner.learn(images, torch.arange(40) % 2)
    learner.save(path)
    return Folder.read(path)


def features(**values: Any) -> Change:
    return lambda folder: folder.content["state"]["features"].update(values)


PATCHES: dict[str, Change] = {
    **{
        f"{name} {what}": tensor("features", name, change)
        for name in ("whitening", "filters", "mean", "deviation")
        for what, change in HARM.items()
        if what != "too large"
    },
    **{f"no {name}": lambda f, name=name: f.parts["features"].pop(name) for name in ("whitening", "filters", "mean")},
    "a deviation of nothing": tensor("features", "deviation", one_number(0.0)),
    "a negative deviation": tensor("features", "deviation", one_number(-1.0)),
    "one mean for all": tensor("features", "mean", lambda mean: mean[:1]),
    "a tensor too many": lambda folder: folder.parts["features"].update(more=torch.ones(2)),
    **{
        f"{name} of {value!r}": features(**{name: value})
        for name in ("patch", "grid", "image", "mirror", "threshold")
        for value in (None, -1, 7, 10**9, "x", [], [1, 9, 9], [10**9] * 3, 1.5, NAN)
    },
}


@pytest.mark.parametrize("evil", PATCHES)
def test_patch_features_that_do_not_fit_together_are_refused(of_patches: Folder, tmp_path: Path, evil: str) -> None:
    refused(of_patches, PATCHES[evil], tmp_path / "model")


@pytest.fixture(scope="module")
def of_two_sizes(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("sizes") / "model"
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2))
    settings = SETTINGS.replace(
        **{
            "inference.features": "patches",
            "inference.features.filters": 2,
            "inference.features.sizes": (3, 5),
            "inference.features.grid": 2,
        }
    )
    learner = Learner(net, settings, device="cpu")
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    learner.learn(images, torch.arange(40) % 2)
    learner.save(path)
    return Folder.read(path)


SIZES: dict[str, Change] = {
    **{f"no {name}": lambda f, name=name: f.parts["features"].pop(name) for name in ("3.filters", "5.mean")},
    "a whitening of the other size": lambda f: f.parts["features"].update(
        {"5.whitening": f.parts["features"]["3.whitening"]}
    ),
    "a deviation of nothing": tensor("features", "5.deviation", one_number(0.0)),
    "a tensor without its size": lambda f: f.parts["features"].update(filters=f.parts["features"]["3.filters"]),
    **{
        f"patch of {value!r}": features(patch=value)
        for value in (3, [3], [3, 3], [3, 5, 5], [3, 6], [3, 5.0], [3, "5"], [3, None], [3, -5], [3, 10**9], [[3], 5])
    },
}


@pytest.mark.parametrize("evil", SIZES)
def test_patch_features_of_several_sizes_that_do_not_fit_together_are_refused(
    of_two_sizes: Folder, tmp_path: Path, evil: str
) -> None:
    refused(of_two_sizes, SIZES[evil], tmp_path / "model")


@pytest.mark.parametrize("times", [10, pytest.param(400, marks=pytest.mark.faults)])
@pytest.mark.parametrize("kind", ["together", "each"])
def test_changed_at_random_it_is_refused_or_answers_in_numbers(
    kind: str, times: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    whole: Folder = request.getfixturevalue(kind)
    chance = random.Random(times)
    strange = []
    for _ in range(times):
        folder = whole.changed()
        what = chance.choice(CHANGES)(folder, chance)
        folder.write(tmp_path / "model")
        said = apart(tmp_path / "model")
        if said != "refused" and not said.startswith("answers"):
            strange.append((what, said))
    assert not strange
