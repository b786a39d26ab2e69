"""Forgetting one task takes that task away, and every factor that only it used, and changes nothing else by a bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ibpwf
from ibpwf import Gaussian, Learner, Settings
from ibpwf.errors import InputError
from ibpwf.inference.features.layer import unread_by
from ibpwf.storage.folder import foreign_files, verify_folder

CLASSES = (2, 3, 2, 4)
SHAPE = (1, 4, 4)


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.Flatten(),
        nn.Linear(24, 4),
    )


class Branched(nn.Module):
    """Not a sequence: nothing is known of what φ does not read."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.second = nn.Linear(16, 8)
        self.first = nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        out: Tensor = self.head(torch.relu(self.first(x)) * self.second(x))
        return out


NETS: dict[str, Callable[[], nn.Module]] = {"mlp": mlp, "convolutions": convolutions, "branched": Branched}


def examples(number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    y = torch.arange(48) % CLASSES[number % len(CLASSES)]
    return torch.randn(48, *SHAPE, generator=generator) + 2 * torch.randn(4, *SHAPE, generator=generator)[y], y


def setting(**changes: object) -> Settings:
    base = Settings(alpha=4.0, epochs=4, finetune_epochs=1, batch_size=16, learning_rate=0.05, kappa=0.3)
    return base.replace(**changes)


def taught(net: str, tasks: int = 4, **changes: object) -> Learner:
    learner = Learner(NETS[net](), setting(**changes), seed=2, device="cpu")
    for number in range(tasks):
        learner.learn(*examples(number), task=f"t{number}")
    return learner


X = torch.cat([examples(number)[0][:6] for number in range(6)])


def answers(learner: Learner, task: str) -> list[Tensor]:
    """All that a task answers: logits, draws, its merged network and its part in telling tasks apart."""
    drawn = learner.predict(X, task=task, posterior_samples=3, seed=4)
    number = learner.task_number(task)
    mine = [column for column, (owner, _) in enumerate(drawn.classes) if owner == number]
    merged = learner.merge(task)
    scores = learner.method.inference.group_scores(learner.method.features(X))  # type: ignore[attr-defined]
    groups = [g for g, owner in enumerate(learner.method.inference.owner) if owner == number]  # type: ignore[attr-defined]
    return [
        learner.logits(X, task),
        drawn.probabilities[:, mine],
        merged(X).detach(),
        learner.method.features(X),  # type: ignore[attr-defined]
        scores[:, groups],
    ]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(one, other) for one, other in zip(left, right, strict=True))


def used(learner: Learner) -> dict[str, set[int]]:
    """The factors that a task or φ reads, by position."""
    found: dict[str, set[int]] = {}
    for name in learner.model.layers:
        masks = [task.selected[name] for task in learner.model.tasks]
        reference = learner.model.reference
        if reference is not None and name in reference.selected:
            masks.append(reference.selected[name])
        found[name] = {int(k) for mask in masks for k in mask.nonzero()}
    return found


def locked(learner: Learner) -> dict[str, set[int]]:
    return {name: set(d.gathered().positions.tolist()) for name, d in learner.model.layers.items()}


@pytest.mark.parametrize("inference", ["gaussian", Gaussian(per="class")])
@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("gone", [0, 1, 3])
def test_every_other_task_answers_with_the_same_bits_and_no_factor_of_nobody_stays(
    net: str, heads: str, inference: Any, gone: int, tmp_path: Path
) -> None:
    learner = taught(net, heads=heads, inference=inference)
    learner.save(tmp_path / "model")
    others = [f"t{number}" for number in range(4) if number != gone]
    before = {task: answers(learner, task) for task in others}
    was = {name: dictionary.locked for name, dictionary in learner.model.layers.items()}
    forgotten = learner.forget(f"t{gone}")
    assert [(task.name, task.number) for task in learner.tasks] == [(name, n) for n, name in enumerate(others)]
    for task in others:
        assert same(answers(learner, task), before[task])
    assert locked(learner) == used(learner)
    assert {n: was[n] - count for n, count in forgotten.removed.items()} == {
        n: len(p) for n, p in used(learner).items()
    }
    inferred = learner.predict(X)
    assert inferred.task_probabilities.shape == (len(X), 3)
    torch.testing.assert_close(inferred.probabilities.sum(1), torch.ones(len(X), dtype=torch.float64))

    learner.save(tmp_path / "model")
    assert verify_folder(tmp_path / "model") == foreign_files(tmp_path / "model") == []
    loaded = Learner.load(tmp_path / "model", net=NETS[net](), device="cpu")
    for task in others:
        assert same(answers(loaded, task), before[task])
    assert torch.equal(loaded.predict(X).probabilities, inferred.probabilities)

    for each in (learner, loaded):  # and both go on from there, alike
        each.learn(*examples(4), task="t4")
        for task in others:
            assert same(answers(each, task), before[task])
        assert locked(each) == used(each)
    assert same(answers(learner, "t4"), answers(loaded, "t4"))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 99)), min_size=3, max_size=8), st.sampled_from(list(NETS)))
@settings(max_examples=12, deadline=None)
def test_any_order_of_learning_and_forgetting_leaves_the_remaining_tasks_as_they_were(
    steps: list[tuple[bool, int]], net: str
) -> None:
    learner = taught(net, tasks=2, epochs=2)
    expected = {task.name: answers(learner, task.name) for task in learner.tasks}
    for number, (forget, which) in enumerate(steps):
        if forget and learner.tasks:
            name = learner.tasks[which % len(learner.tasks)].name
            learner.forget(name)
            del expected[name]
        else:
            learner.learn(*examples(number + 2), task=f"later {number}")
            expected[f"later {number}"] = answers(learner, f"later {number}")
        if not learner.tasks:
            expected.clear()
        assert [task.name for task in learner.tasks] == list(expected)
        assert all(same(answers(learner, name), told) for name, told in expected.items())
        assert locked(learner) == used(learner)


@pytest.mark.parametrize("init", ["random", "pretrained"])
@pytest.mark.parametrize("net", NETS)
def test_forgetting_the_newest_task_is_as_if_it_had_never_been_learnt(net: str, init: str) -> None:
    learner, never = taught(net, tasks=3, init=init), taught(net, tasks=2, init=init)
    learner.forget("t2")
    for each in (learner, never):
        each.learn(*examples(5), task="next")
    for task in ("t0", "t1", "next"):
        assert same(answers(learner, task), answers(never, task))
    assert torch.equal(learner.predict(X).probabilities, never.predict(X).probabilities)


def test_a_new_task_after_a_forgotten_one_draws_random_numbers_of_its_own() -> None:
    """Its number is that of an older task, its serial is nobody's: else it would start from that one's factors."""
    learner = taught("mlp")
    learner.forget("t1")
    learner.learn(*examples(4), task="t4")
    assert [learner.method.serial(number) for number in range(4)] == [0, 2, 3, 4]
    assert learner.method.next_serial(4) == 5


def test_forgetting_the_first_task_keeps_the_weights_that_phi_reads_and_no_others() -> None:
    learner = taught("mlp")
    assert unread_by(learner.model.net, ["1"]) == ("2.", "3.", "4.", "5.")
    learner.forget("t0")
    reference = learner.model.reference
    assert reference is not None
    assert set(reference.selected) == {"1"}
    assert set(reference.own) == {"1.bias"}
    assert bool((reference.strength["1"][~reference.selected["1"]] == 0).all())
    learner.forget("t1")
    assert learner.model.reference is reference  # φ stays what it was when the first task was learnt


def test_what_phi_cannot_read_is_known_for_sequences_only() -> None:
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net = nn.Sequential(nn.Flatten(), inner, nn.ReLU(), nn.Linear(4, 2))
    assert unread_by(net, ["1.0"]) == ("2.", "3.", "1.1.", "1.2.")
    assert unread_by(net, ["1"]) == ("2.", "3.")
    assert unread_by(net, ["1.0", "3"]) == ()
    assert unread_by(Branched(), ["first"]) == ()
    assert unread_by(Branched(), []) == ("",)


def test_forgetting_the_only_task_leaves_a_learner_that_has_learnt_nothing(tmp_path: Path) -> None:
    learner, fresh = taught("mlp", tasks=2), Learner(mlp(), setting(), seed=2, device="cpu")
    learner.forget(0)
    learner.forget(0)
    assert not learner.tasks
    assert sum(learner.model.stored_numbers().values()) == 0
    learner.save(tmp_path / "model")
    assert {path.name.split(".")[0] for path in (tmp_path / "model").glob("*.safetensors")} == {"template"}
    for each in (learner, Learner.load(tmp_path / "model"), fresh):
        each.learn(*examples(3), task="again")
        assert same(answers(each, "again"), answers(learner, "again"))
    with pytest.raises(InputError, match="nothing has been learnt yet"):
        Learner(mlp(), setting()).forget("t0")


def test_an_unknown_task_is_refused_with_the_nearest_name() -> None:
    learner = taught("mlp", tasks=2)
    with pytest.raises(InputError, match=r"unknown task 'T1'\. Did you mean 't1'\?"):
        learner.forget("T1")
    assert len(learner.tasks) == 2


@pytest.mark.parametrize("method", ["ewc", "separate", "const-wf"])
def test_a_method_whose_tasks_share_weights_says_that_it_cannot(method: str) -> None:
    from ibpwf.lab.methods import method_named
    from ibpwf.lab.methods.dense import Problem
    from ibpwf.learner import Learner

    learner = Learner(method_named(method)(Problem((16,), 4, "task")))  # type: ignore[call-arg]
    learner._state = replace(learner._state, tasks=(ibpwf.learner.TaskInfo("a", 0, (0, 1), 4),))
    with pytest.raises(InputError, match=f"method '{method}' cannot forget one task"):
        learner.forget("a")
    assert len(learner.tasks) == 1


def test_forgetting_gives_every_factor_to_the_first_task_that_still_reads_it() -> None:
    learner = taught("mlp")
    learner.forget("t1")
    for name, dictionary in learner.model.layers.items():
        seen: set[int] = set()
        for number, block in enumerate(dictionary.blocks):
            selected = set(learner.model.tasks[number].selected[name].nonzero().flatten().tolist())
            assert set(block.positions.tolist()) == selected - seen
            use = learner.model.use(number)[name]
            assert (use.active, use.new, use.total) == (len(selected), len(selected - seen), len(seen | selected))
            seen |= selected
