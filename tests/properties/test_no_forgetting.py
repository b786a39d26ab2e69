"""What a task answers never changes again, not by a bit, whatever is learnt after it and however much is added."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from ibpwf import Gaussian, Learner, Settings
from ibpwf.factors.prior import IBP, LayerShape
from ibpwf.training.callbacks import Callback, EpochEnd

CLASSES = ((0, 1), (2, 3, 4), (5, 6), (7, 8, 9))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 10))


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 8, 3, stride=2, groups=2),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )


def dilated() -> nn.Module:
    """Depthwise, grouped and dilated convolutions and every kind of normalisation."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=2, dilation=2, padding_mode="circular", bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 8, (3, 1), padding=(1, 0), groups=8),
        nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.ReLU(),
        nn.Conv2d(8, 12, 3, stride=2, groups=4),
        nn.GroupNorm(3, 12),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.LayerNorm(12),
        nn.Linear(12, 10),
    )


class Transformer(nn.Module):
    """torch's own attention, with a class token, and dropout while it learns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Conv2d(1, 12, 2, stride=2)
        self.token = nn.Parameter(torch.randn(1, 1, 12) * 0.1)
        self.layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.1, batch_first=True)
        self.cross = nn.MultiheadAttention(12, 3, kdim=12, vdim=12)
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.stem(x).flatten(2).transpose(1, 2)
        mixed = self.layer(torch.cat([self.token.expand(x.shape[0], -1, -1), tokens], 1)).transpose(0, 1)
        out: Tensor = self.head(self.cross(mixed[:1], mixed, mixed)[0].squeeze(0))
        return out


NETS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "convolutions with BatchNorm": convolutions,
    "dilated and depthwise convolutions": dilated,
    "attention": Transformer,
}


@pytest.fixture(scope="module")
def digits() -> tuple[Tensor, Tensor]:
    data = load_digits()
    return torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16, torch.tensor(data.target)


def task(digits: tuple[Tensor, Tensor], classes: tuple[int, ...], count: int = 160) -> tuple[Tensor, Tensor]:
    rows = torch.isin(digits[1], torch.tensor(classes)).nonzero().flatten()[:count]
    return digits[0][rows], digits[1][rows]


def settings(**changes: object) -> Settings:
    base = Settings(alpha=4.0, epochs=2, finetune_epochs=1, batch_size=32, learning_rate=0.02)
    return base.replace(**changes)


@pytest.fixture
def always_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every layer asks for three more sticks after every epoch, whatever it has used."""

    def three_more(self: IBP, layer: LayerShape, active: int, free: int, locked: int) -> int:
        return self.capped(layer, locked + free + 3, locked) - locked - free

    monkeypatch.setattr(IBP, "shortage", three_more)


def widths(learner: Learner) -> dict[str, int]:
    return {name: dictionary.width for name, dictionary in learner.model.layers.items()}


@pytest.mark.usefixtures("always_short")
@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize(
    ("net", "kappa"),
    [*((net, 0.5) for net in NETS), *((net, kappa) for net in list(NETS)[:2] for kappa in (0.3, 0.9))],
)
def test_earlier_tasks_answer_with_the_same_bits_after_every_later_task(
    digits: tuple[Tensor, Tensor], net: str, kappa: float, heads: str
) -> None:
    learner = Learner(NETS[net](), settings(kappa=kappa, heads=heads), device="cpu")
    held_out = digits[0][-64:]
    answers: list[Tensor] = []
    before = dict.fromkeys(learner.model.layers, 0)
    for classes in CLASSES:
        x, y = task(digits, classes)
        learner.learn(x, y)
        assert all(widths(learner)[name] > before[name] for name in before), "the dictionary has grown"
        before = widths(learner)
        learner.model._composed.clear()  # composed anew from what is stored, not remembered
        answers.append(learner.logits(held_out, len(answers)))
        for old, expected in enumerate(answers):
            assert torch.equal(learner.logits(held_out, old), expected)
    assert all(not torch.equal(answers[0][:, :2], later[:, :2]) for later in answers[1:])


@pytest.mark.parametrize("net", NETS)
def test_nothing_stored_about_a_task_changes_and_neither_do_its_draws_and_merged_network(
    digits: tuple[Tensor, Tensor], net: str
) -> None:
    learner = Learner(NETS[net](), settings(inference=Gaussian(per="class")), device="cpu")
    learner.learn(*task(digits, CLASSES[0]))
    x = digits[0][-64:]

    def everything() -> list[Tensor]:
        _, files = learner.method.state()
        drawn = learner.predict(x, task=0, posterior_samples=7, seed=3)
        probabilities = drawn.probabilities[:, :2], drawn.mutual_information
        merged = learner.merge(0)
        return [*files["task-0000"].values(), *probabilities, merged(x).detach(), *merged.state_dict().values()]

    kept = [value.clone() for value in everything()]
    for classes in CLASSES[1:]:
        learner.learn(*task(digits, classes))
        assert all(torch.equal(now, then) for now, then in zip(everything(), kept, strict=True))


@pytest.mark.parametrize("heads", ["shared", "per-task"])
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("init", ["random", "pretrained"])
def test_a_learner_that_was_stored_and_loaded_goes_on_with_the_same_bits(
    digits: tuple[Tensor, Tensor], net: str, heads: str, init: str, tmp_path: Path
) -> None:
    straight = Learner(NETS[net](), settings(heads=heads, init=init), seed=5, device="cpu")
    stopped = Learner(NETS[net](), settings(heads=heads, init=init), seed=5, device="cpu")
    x = digits[0][-64:]
    stopped.save(tmp_path / "model")
    for number, classes in enumerate(CLASSES[:3]):
        stopped = Learner.load(tmp_path / "model", net=NETS[net](), device="cpu")
        torch.rand(number + 1)  # random numbers that others draw in between are nothing to it
        for learner in (straight, stopped):
            learner.learn(*task(digits, classes, count=96))
        stopped.save(tmp_path / "model")
    loaded = Learner.load(tmp_path / "model", net=NETS[net](), device="cpu")
    for number in range(3):
        for learner in (stopped, loaded):
            assert torch.equal(learner.logits(x, number), straight.logits(x, number))
    assert torch.equal(loaded.predict(x).task_probabilities, straight.predict(x).task_probabilities)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("init", ["random", "pretrained"])
def test_on_a_gpu_steps_recorded_as_a_graph_forget_nothing_either(
    digits: tuple[Tensor, Tensor], net: str, init: str
) -> None:
    learner = Learner(NETS[net](), settings(init=init), device="cuda")
    x = digits[0][-64:]
    answers: list[Tensor] = []
    for classes in CLASSES[:3]:
        learner.learn(*task(digits, classes))
        learner.model._composed.clear()
        answers.append(learner.logits(x, -1))
        assert all(torch.equal(learner.logits(x, old), expected) for old, expected in enumerate(answers))
        merged = learner.merge(-1)
        with torch.no_grad():
            torch.testing.assert_close(merged(x.cuda()), answers[-1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "offered", "after_first"),
    [
        pytest.param({"alpha": 4.0, "kappa": 0.3, "epochs": 4}, 8, 8, id="between tasks"),
        pytest.param({"alpha": 1.0, "kappa": 0.1, "epochs": 4}, 4, 8, id="during a task"),
    ],
)
def test_a_dictionary_that_is_too_small_grows_of_itself_and_forgets_nothing(
    digits: tuple[Tensor, Tensor], changes: dict[str, float], offered: int, after_first: int
) -> None:
    learner = Learner(mlp(), settings(**changes), device="cpu")
    x = digits[0][-64:]
    answers: list[Tensor] = []
    seen = [offered]
    for classes in CLASSES:
        learner.learn(*task(digits, classes))
        seen.append(max(widths(learner).values()))
        answers.append(learner.logits(x, -1))
        assert all(torch.equal(learner.logits(x, old), expected) for old, expected in enumerate(answers))
    assert seen[1] == after_first
    assert seen[-1] > offered


def test_a_full_dictionary_forgets_nothing_either(digits: tuple[Tensor, Tensor]) -> None:
    learner = Learner(mlp(), settings(max_factors=6, kappa=0.3), device="cpu")
    x = digits[0][-64:]
    answers: list[Tensor] = []
    for classes in CLASSES:
        learner.learn(*task(digits, classes))
        answers.append(learner.logits(x, -1))
        assert all(torch.equal(learner.logits(x, old), expected) for old, expected in enumerate(answers))
    assert max(widths(learner).values()) == 6


@pytest.mark.parametrize("phase", ["elbo", "finetune"])
def test_a_task_broken_off_leaves_the_learner_as_it_was(digits: tuple[Tensor, Tensor], phase: str) -> None:
    class Stopping(Callback):
        def epoch_end(self, epoch: EpochEnd) -> None:
            if epoch.phase == phase:
                raise KeyboardInterrupt

    learner, twin = (Learner(convolutions(), settings(), device="cpu") for _ in range(2))
    x = digits[0][-64:]
    for each in (learner, twin):
        each.learn(*task(digits, CLASSES[0]))
    expected = twin.logits(x, 0)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(*task(digits, CLASSES[1]), callbacks=[Stopping()])
    assert len(learner.tasks) == 1
    assert torch.equal(learner.logits(x, 0), expected)
    for each in (learner, twin):
        each.learn(*task(digits, CLASSES[2]))
    for number in range(2):
        assert torch.equal(learner.logits(x, number), twin.logits(x, number))


def test_a_task_still_learns_something_beside_the_locked_ones(digits: tuple[Tensor, Tensor]) -> None:
    learner = Learner(mlp(), settings(alpha=16.0, epochs=10, finetune_epochs=5), device="cpu")
    for classes in CLASSES:
        learner.learn(*task(digits, classes, count=300))
    for number, classes in enumerate(CLASSES):
        x, y = (part[300:] for part in task(digits, classes, count=1000))
        correct = (learner.predict(x, task=number).labels == y).float().mean()
        assert float(correct) > 0.9
