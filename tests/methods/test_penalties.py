"""The importances are what their papers say, the penalty is the sum it claims to be, and nothing is lost on the way
to disk or through a task that broke off."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ibpwf.errors import InputError
from ibpwf.methods import ewc
from ibpwf.methods.base import TaskData
from ibpwf.methods.dense import DenseMethod, DenseSettings, Problem
from ibpwf.methods.ewc import EWC, EWCSettings, OnlineEWC, OnlineEWCSettings
from ibpwf.methods.mas import MAS, MASSettings
from ibpwf.methods.penalties import L2, ImportancePenalty, L2Settings, PenaltySettings
from ibpwf.methods.si import SI, SISettings
from ibpwf.training.loop import task_steps

METHODS = [L2, EWC, OnlineEWC, SI, MAS]
SETTINGS = ["task", "class"]
SMALL: dict[str, Any] = {"hidden": (5,), "epochs": 3, "batch_size": 8, "learning_rate": 0.01}


def make(kind: type[ImportancePenalty], setting: str = "task", seed: int = 0, **changes: Any) -> ImportancePenalty:
    settings = kind.settings_type(**{**SMALL, **changes})
    return kind(Problem((6,), 6, setting), settings, seed=seed)


def task(index: int, examples: int = 40, seed: int = 0) -> TaskData:
    """Two classes of six values, around centres of their own."""
    generator = torch.Generator().manual_seed(100 + index)
    y = torch.arange(examples) % 2
    centres = 2 * torch.randn(2, 6, generator=generator)
    x = centres[y] + torch.randn(examples, 6, generator=generator)
    return TaskData(f"task {index}", index, (2 * index, 2 * index + 1), x, y, seed)


def learn(method: DenseMethod, *tasks: TaskData) -> None:
    for data in tasks:
        for _ in task_steps(method, data):
            pass


def parameters(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten().double() for p in net.parameters()])


def columns(setting: str, index: int) -> slice:
    """Which outputs compete while task `index` of two classes is learnt."""
    return slice(0 if setting == "class" else 2 * index, 2 * index + 2)


def own_gradient(net: nn.Module, x: Tensor, value: Callable[[Tensor], Tensor]) -> Tensor:
    """∂ value(f(x)) / ∂θ for one example, by torch's plain backward pass in double precision."""
    net = _double(net)
    grads = torch.autograd.grad(value(net(x.double().unsqueeze(0))[0]), list(net.parameters()))
    return torch.cat([g.flatten() for g in grads])


def _double(net: nn.Module) -> nn.Module:
    twin = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 6)).double()
    for own, other in zip(twin.parameters(), net.parameters(), strict=True):
        own.data.copy_(other.data)
    return twin


def fisher_by_loops(net: nn.Module, x: Tensor, head: slice) -> Tensor:
    """Σ_y p(y|x) (∂ log p(y|x) / ∂θ)² averaged over x: one example and one label at a time."""
    total = torch.zeros_like(parameters(net))
    for row in x:
        for label in range(head.stop - head.start):
            log_p = own_gradient(net, row, lambda out, label=label: out[head].log_softmax(0)[label])
            p = _double(net)(row.double().unsqueeze(0))[0, head].softmax(0)[label].detach()
            total += p * log_p.square() / len(x)
    return total


# Importances


@pytest.mark.parametrize("setting", SETTINGS)
def test_fisher_information_is_that_of_a_loop_over_examples_and_labels(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = make(EWC, setting)
    learn(method, task(0))
    method.begin_task(task(1))
    x = task(1).x
    truth = fisher_by_loops(method.net, x, columns(setting, 1))
    assert (method.fisher(x) - truth).abs().sum() < 1e-4 * truth.sum()
    monkeypatch.setattr(ewc, "NEGLIGIBLE", -1.0)
    torch.testing.assert_close(method.fisher(x).double(), truth, rtol=1e-4, atol=1e-9)


def test_labels_that_hardly_count_are_left_out_of_a_confident_network_s_fisher_information(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained, method, x = make(EWC, epochs=60), make(EWC), task(0).x
    learn(trained, task(0))
    method.net.load_state_dict(trained.net.state_dict())
    method.begin_task(task(0))
    computed: list[int] = []
    exact = ImportancePenalty.gradient_sum

    def counted(self: Any, value: Any, size: Any, x: Tensor, *others: Tensor) -> Tensor:
        computed.append(len(x))
        return exact(self, value, size, x, *others)

    monkeypatch.setattr(ImportancePenalty, "gradient_sum", counted)
    truth = fisher_by_loops(method.net, x, slice(0, 2))
    assert (method.fisher(x) - truth).abs().sum() < 1e-3 * truth.sum()
    assert computed[0] < 0.8 * 2 * len(x)


def test_fisher_information_uses_at_most_the_given_number_of_examples() -> None:
    data = task(0)
    all_of_them, more, few, few_again, others = (make(EWC, fisher_samples=n) for n in (40, 1000, 6, 6, 6))
    for method in (all_of_them, more, few, few_again):
        learn(method, data)
    learn(others, task(0, seed=1))
    truth = fisher_by_loops(more.net, data.x, slice(0, 2))
    torch.testing.assert_close(more.importance.double(), truth, rtol=1e-2, atol=1e-3 * truth.max().item())
    assert torch.equal(more.importance, all_of_them.importance)
    assert not torch.allclose(few.importance, more.importance)
    assert torch.equal(few.importance, few_again.importance)
    assert not torch.equal(few.some_examples(data, 6), few.some_examples(task(0, seed=1), 6))


def test_true_labels_play_no_part_in_the_fisher_information() -> None:
    data, method = task(0), make(EWC)
    method.begin_task(data)
    told = method.importance_of(data)
    lied = method.importance_of(TaskData(data.name, 0, data.classes, data.x, 1 - data.y, 0))
    assert torch.equal(told, lied)


@pytest.mark.parametrize("setting", SETTINGS)
def test_mas_is_the_mean_absolute_slope_of_the_squared_norm_by_finite_differences(setting: str) -> None:
    method = make(MAS, setting)
    learn(method, task(0))
    data = task(1, examples=10)
    method.begin_task(data)
    importance = method.importance_of(data)
    twin, head, step = _double(method.net), columns(setting, 1), 1e-6

    def norms() -> Tensor:
        return twin(data.x.double())[:, head].square().sum(1).detach()

    slopes = []
    for p in twin.parameters():
        for i in range(p.numel()):
            flat = p.data.view(-1)
            flat[i] += step
            above = norms()
            flat[i] -= 2 * step
            below = norms()
            flat[i] += step
            slopes.append(((above - below) / (2 * step)).abs().mean())
    torch.testing.assert_close(importance.double(), torch.stack(slopes), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("kind", [EWC, OnlineEWC, MAS, SI])
def test_in_the_task_setting_other_tasks_outputs_have_no_importance(kind: type[ImportancePenalty]) -> None:
    method = make(kind)
    learn(method, task(0))
    bias = method.importance[-6:]
    assert (bias[:2] > 0).all()
    assert (bias[2:] == 0).all()


class Bowls(SI):
    """SI on ½ Σ h (θ − m)², a bowl per task: gradient descent in it has a closed form."""

    curvature, floor = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([[1.0, -1.0, 0.5], [0.0, 2.0, -0.5]])

    def build(self) -> nn.Module:
        return nn.Linear(3, 1, bias=False)

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        away = self.position() - self.floor[self.task.index]
        return 0.5 * (self.curvature * away.square()).sum()


def bowl(index: int) -> TaskData:
    return TaskData(f"bowl {index}", index, (index,), torch.zeros(10, 3), torch.zeros(10, dtype=torch.long), 0)


def bowls(epochs: int = 5, rate: float = 0.1, **changes: Any) -> Bowls:
    """Five steps an epoch of plain gradient descent."""
    settings = SISettings(epochs=epochs, batch_size=2, learning_rate=rate, optimizer="sgd", **changes)
    return Bowls(Problem((3,), 2, "task"), settings)


def test_si_path_integral_in_a_bowl_is_the_geometric_series() -> None:
    """θ − m shrinks by r = 1 − ηh a step, so ω = Σ_k η (h e_k)² = h e_0² (1 − r^2K) / (2 − ηh)."""
    method, rate = bowls(), 0.1
    start = method.position().detach()
    learn(method, bowl(0))
    h = Bowls.curvature
    left = (1 - rate * h) ** 25  # five epochs of five steps
    away = start - Bowls.floor[0]
    omega = h * away.square() * (1 - left.square()) / (2 - rate * h)
    torch.testing.assert_close(method.position().detach(), Bowls.floor[0] + left * away)
    torch.testing.assert_close(method.path, omega)
    moved = (1 - left) * away
    torch.testing.assert_close(method.importance, omega / (moved.square() + 0.1))


def test_si_path_integral_of_small_steps_is_the_fall_of_the_loss() -> None:
    method = bowls(epochs=100, rate=4e-3)
    start = method.position().detach()
    learn(method, bowl(0))

    def loss(position: Tensor) -> Tensor:
        return 0.5 * (Bowls.curvature * (position - Bowls.floor[0]).square()).sum()

    fall = loss(start) - loss(method.position().detach())
    torch.testing.assert_close(method.path.sum(), fall, rtol=5e-3, atol=0)


def test_si_leaves_the_penalty_out_of_the_path_integral() -> None:
    """The second bowl, with the penalty's pull, followed step by step for each parameter on its own."""
    coefficient, rate = 0.7, 0.1
    method = bowls(coefficient=coefficient)
    learn(method, bowl(0))
    first, anchor = method.importance.double(), method.anchor.double()
    learn(method, bowl(1))
    for i in range(3):
        h, m = Bowls.curvature[i].double(), Bowls.floor[1, i].double()
        here, omega = anchor[i].clone(), 0.0
        for _ in range(25):
            of_task = h * (here - m)
            step = -rate * (of_task + 2 * coefficient * first[i] * (here - anchor[i]))
            omega -= of_task * step
            here = here + step
        assert method.position()[i].item() == pytest.approx(here.item(), rel=1e-5)
        assert method.path[i].item() == pytest.approx(omega.item(), rel=1e-4)
        expected = first[i] + max(omega, 0) / ((here - anchor[i]) ** 2 + 0.1)
        assert method.importance[i].item() == pytest.approx(expected.item(), rel=1e-4)


def test_si_gives_no_importance_to_parameters_that_raised_the_loss() -> None:
    method = bowls()
    method.begin_task(bowl(0))
    method.path.copy_(torch.tensor([-1.0, 0.0, 1.0]))
    torch.testing.assert_close(method.importance_of(bowl(0)), torch.tensor([0.0, 0.0, 10.0]))


def test_l2_holds_all_parameters_alike_after_any_number_of_tasks() -> None:
    method = make(L2)
    learn(method, task(0), task(1), task(2))
    assert torch.equal(method.importance, torch.ones(6 * 5 + 5 + 5 * 6 + 6))


# The penalty


@pytest.mark.parametrize("kind", METHODS)
def test_penalty_and_its_gradient_are_those_of_a_loop_over_parameters(kind: type[ImportancePenalty]) -> None:
    method = make(kind, coefficient=3.0)
    size, generator = len(method.position()), torch.Generator().manual_seed(1)
    importance, anchor = torch.rand(size, generator=generator), torch.randn(size, generator=generator)
    method.load_kept({"importance": importance, "anchor": anchor})
    penalty = method.penalty(torch.zeros(1, 6))
    penalty.backward()
    value, at = 0.0, 0
    for p in method.net.parameters():
        for number, slope in zip(p.detach().flatten().tolist(), p.grad.flatten().tolist(), strict=True):
            away = number - anchor[at].item()
            value += 3.0 * importance[at].item() * away**2
            assert slope == pytest.approx(2 * 3.0 * importance[at].item() * away, rel=1e-5)
            at += 1
    assert at == size
    assert penalty.item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("kind", METHODS)
def test_there_is_no_penalty_in_the_first_task(kind: type[ImportancePenalty]) -> None:
    held, free = make(kind, coefficient=1e3), make(kind, coefficient=0.0)
    for method in (held, free):
        learn(method, task(0))
    assert torch.equal(held.position(), free.position())
    for method in (held, free):
        learn(method, task(1))
    assert not torch.equal(held.position(), free.position())


def stations(method: EWC) -> list[tuple[Tensor, Tensor]]:
    """Learn three tasks; each task's Fisher information by loops, and where it ended."""
    found = []
    for index in range(3):
        learn(method, task(index))
        fisher = fisher_by_loops(method.net, task(index).x, columns("task", index))
        found.append((fisher, parameters(method.net)))
    return found


def test_ewc_pulls_as_one_term_per_old_task_would() -> None:
    method = make(EWC, coefficient=5.0)
    old = stations(method)

    def terms() -> float:
        return sum(5.0 * (f * (parameters(method.net) - anchor).square()).sum().item() for f, anchor in old)

    slopes, values, expected = [], [], []
    for seed in range(2):
        with torch.no_grad():
            for p in method.net.parameters():
                p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(seed))
        penalty = method.penalty(torch.zeros(1, 6))
        slopes = torch.autograd.grad(penalty, list(method.net.parameters()))
        values.append(penalty.item())
        expected.append(terms())
        truth = sum(2 * 5.0 * f * (parameters(method.net) - anchor) for f, anchor in old)
        flat = torch.cat([g.flatten() for g in slopes]).double()
        torch.testing.assert_close(flat, truth, rtol=1e-2, atol=1e-3 * truth.abs().max().item())
    assert values[1] - values[0] == pytest.approx(expected[1] - expected[0], rel=1e-2)


def test_online_ewc_forgets_old_information_by_gamma_and_anchors_at_the_last_task() -> None:
    method = make(OnlineEWC, gamma=0.5)
    (first, _), (second, _), (third, end) = stations(method)
    truth = 0.25 * first + 0.5 * second + third
    torch.testing.assert_close(method.importance.double(), truth, rtol=1e-2, atol=1e-3 * truth.max().item())
    assert torch.equal(method.anchor.double(), end)


def test_importances_of_mas_add_up() -> None:
    method = make(MAS)
    learn(method, task(0))
    first = method.importance.clone()
    learn(method, task(1))
    method.classes.pop()
    method.begin_task(task(1))
    torch.testing.assert_close(method.importance, first + method.importance_of(task(1)))


@pytest.mark.parametrize("kind", METHODS)
def test_a_held_network_stays_nearer_to_the_old_task(kind: type[ImportancePenalty]) -> None:
    held, free = make(kind, coefficient=10.0, epochs=10), make(kind, coefficient=0.0, epochs=10)
    outputs = []
    for method in (held, free):
        learn(method, task(0))
        old = method.net(task(0).x)[:, :2].detach()
        learn(method, task(1), task(2))
        outputs.append((method.net(task(0).x)[:, :2].detach() - old).square().mean())
    assert outputs[0] < 0.5 * outputs[1]


# What survives


def snapshot(method: DenseMethod) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
    content, files = method.state()
    return json.loads(json.dumps(content)), {
        file: {name: tensor.clone() for name, tensor in tensors.items()} for file, tensors in files.items()
    }


def same(one: DenseMethod, other: DenseMethod) -> bool:
    (content, files), (content2, files2) = snapshot(one), snapshot(other)
    assert {file: list(tensors) for file, tensors in files.items()} == {f: list(t) for f, t in files2.items()}
    return content == content2 and all(
        torch.equal(tensor, files2[file][name]) for file, tensors in files.items() for name, tensor in tensors.items()
    )


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("kind", METHODS)
def test_a_stored_method_goes_on_with_the_same_bits(kind: type[ImportancePenalty], setting: str) -> None:
    method = make(kind, setting, seed=7)
    learn(method, task(0), task(1))
    again = kind.create(json.loads(json.dumps(method.configuration())))
    again.load_state(*snapshot(method))
    assert same(method, again)
    learn(method, task(2))
    assert not same(method, again)
    learn(again, task(2))
    assert same(method, again)


@pytest.mark.parametrize("learnt", [0, 1])
@pytest.mark.parametrize("kind", METHODS)
def test_nothing_is_kept_of_an_abandoned_task(kind: type[ImportancePenalty], learnt: int) -> None:
    method, undisturbed = make(kind), make(kind)
    learn(method, *map(task, range(learnt)))
    learn(undisturbed, *map(task, range(learnt)))
    steps = task_steps(method, task(learnt))
    for _ in range(7):
        next(steps)
    steps.close()
    assert same(method, undisturbed)
    learn(method, task(learnt))
    learn(undisturbed, task(learnt))
    assert same(method, undisturbed)


@pytest.mark.parametrize("kind", METHODS)
def test_nothing_is_kept_when_the_importance_cannot_be_computed(
    kind: type[ImportancePenalty], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, undisturbed = make(kind), make(kind)
    for one in (method, undisturbed):
        learn(one, task(0))

    def out_of_memory(data: TaskData) -> Tensor:
        raise MemoryError

    monkeypatch.setattr(method, "importance_of", out_of_memory)
    with pytest.raises(MemoryError):
        learn(method, task(1))
    assert same(method, undisturbed)


@pytest.mark.parametrize("kind", METHODS)
def test_a_step_changes_only_parameters_and_listed_buffers_and_those_in_place(kind: type[ImportancePenalty]) -> None:
    """What a recorded CUDA graph needs: it replays on the same memory, and a warm-up is put back."""
    method = make(kind)
    learn(method, task(0))
    steps = task_steps(method, task(1))
    next(steps)
    tensors = {name: value for name, value in vars(method).items() if isinstance(value, Tensor)}
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    listed = {tensor.data_ptr() for tensor in method.buffers()}
    next(steps)
    for name, tensor in tensors.items():
        assert vars(method)[name] is tensor
        assert torch.equal(tensor, before[name]) != (tensor.data_ptr() in listed), name
    steps.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", METHODS)
def test_a_recorded_step_does_what_a_plain_step_does(kind: type[ImportancePenalty]) -> None:
    positions = []
    for capturable in (True, False):
        one = type("One", (kind,), {"capturable": capturable})
        method = one(Problem((6,), 6, "class"), kind.settings_type(**SMALL), device="cuda")
        for index in range(3):
            data = task(index)
            learn(method, TaskData(data.name, index, data.classes, data.x.cuda(), data.y.cuda(), 0))
        positions.append(torch.stack([method.position().detach(), method.importance]))
    torch.testing.assert_close(positions[0], positions[1], rtol=1e-3, atol=1e-5)


def test_memory_counts_four_bytes_a_parameter_for_network_importance_and_anchor() -> None:
    method = make(MAS)
    assert method.memory() == {"network": 4 * 71}
    learn(method, task(0))
    assert method.memory() == {"network": 4 * 71, "importance": 4 * 71, "anchor": 4 * 71}


# Settings


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (L2Settings, "coefficient", -0.1),
        (EWCSettings, "coefficient", -1),
        (EWCSettings, "fisher_samples", 0),
        (OnlineEWCSettings, "gamma", 1.5),
        (OnlineEWCSettings, "gamma", -0.5),
        (SISettings, "damping", 0.0),
        (MASSettings, "output_samples", 0),
        (PenaltySettings, "coefficient", float("nan")),
    ],
)
def test_settings_out_of_range_are_refused_by_name(kind: type[DenseSettings], field: str, value: float) -> None:
    with pytest.raises(InputError, match=f"{field} is {value}"):
        kind(**{field: value})
