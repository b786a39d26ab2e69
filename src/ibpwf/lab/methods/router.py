"""The router alone: fixed features and ridge regression on the classes of all tasks, no network at all.

It is the part of IBP-WF that tells tasks apart (`ibpwf.inference.router`), made to answer by itself: the best column
of all, or with the task given the best of the task's own. Its settings have the names they have there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn

from ibpwf.errors import InputError
from ibpwf.images import Images
from ibpwf.inference import router as ridge
from ibpwf.inference.base import Context, Features, State
from ibpwf.inference.features.patches import Patches, PatchSizes, Size
from ibpwf.inference.features.random import Random
from ibpwf.inference.prediction import Prediction
from ibpwf.inference.ridge_sums import Precision
from ibpwf.lab.methods.dense import Problem, class_prediction, total_bytes
from ibpwf.limits import MOST_FEATURES
from ibpwf.parts import Auto, Count, FrozenSettings, Part, Positive
from ibpwf.storage.tensor_checks import CorruptModelError
from ibpwf.training.method import Loss, Method, TaskData
from ibpwf.training.phase import Phase

ROWS_AT_ONCE = 1024


def _as_in(part: type[Part], name: str) -> Any:
    field = part.model_fields[name]
    return Field(field.default, description=field.description)


class RouterSettings(FrozenSettings):
    features: Literal["patches", "random"] | Auto = Field(
        "auto",
        description="an image's likeness to 'patches' of the first task's images, also where square gray images come "
        "as flat rows, or a fixed 'random' layer; 'auto': patches where examples have the shape of images",
    )
    random_features: Annotated[int, Field(ge=1, le=MOST_FEATURES)] | Auto = _as_in(Random, "width")
    patch_filters: Count | Size = _as_in(Patches, "filters")
    patch_sizes: PatchSizes = _as_in(Patches, "sizes")
    patch_grid: Count | Auto = _as_in(Patches, "grid")
    patch_epsilon: Positive = _as_in(Patches, "epsilon")
    mirror: bool = Field(
        False, description="patch features learn from every image and its mirror image, and an answer is about both"
    )
    router_ridge: Positive | Auto = _as_in(ridge.Router, "ridge")
    router_precision: Precision = _as_in(ridge.Router, "precision")


class Router(Method):
    """Features are fitted on the first task; after that a task only adds to sums. There are no gradient steps."""

    name: ClassVar[str] = "router"
    summary: ClassVar[str] = "ridge regression on patches of images, or random features, from running sums"
    stores: ClassVar[str] = "filters, feature sums and class means"
    serves_both: ClassVar[bool] = True
    settings_type: ClassVar[type[FrozenSettings]] = RouterSettings
    networks: ClassVar[tuple[str, ...]] = ("mlp", "resnet20")  # it trains none, and reads what either would

    def __init__(
        self,
        problem: Problem,
        settings: RouterSettings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
    ) -> None:
        self.problem, self.seed = problem, seed
        self.settings = settings or RouterSettings()
        self._device = torch.empty(0, device=device, dtype=torch.float32).device
        self.features = self._make_features()
        self.router = ridge.Router(ridge=self.settings.router_ridge, precision=self.settings.router_precision)
        self.classes: list[tuple[int, ...]] = []

    def _make_features(self) -> Features:
        s, given, image = self.settings, self.problem.input_shape, self.problem.image_shape
        fits = len(given) == 3 and min(given[1:]) >= max(s.patch_sizes)
        if s.features == "random" or (s.features == "auto" and not fits):
            return Random(width=s.random_features)
        if image is None:
            raise InputError(
                "features is patches, which needs images (channels, height, width) or square gray ones in flat rows, "
                f"but examples have shape {given}; set features=random."
            )
        patches = Patches(
            filters=s.patch_filters, sizes=s.patch_sizes, grid=s.patch_grid, epsilon=s.patch_epsilon, mirror=s.mirror
        )
        return patches.bound(Context(images=Images(shape=image)))

    @property
    def device(self) -> torch.device:
        return self._device

    @property
    def template(self) -> nn.Module:
        """Products are of a thousand features and more: all threads are of use."""
        return nn.Linear(1024, 1024, device="meta", dtype=torch.float32)

    def fork(self) -> Self:
        """Nothing that it knows is ever written to."""
        return copy.copy(self)

    # Learning

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        return []

    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        return []

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        raise RuntimeError("a closed form has no loss to take steps on")

    def end_task(self, data: TaskData) -> None:
        features, router = copy.copy(self.features), self.router.fork()
        if not self.classes:
            features.fit(data.rows.in_order(), len(data.rows), data.generator("random features"))
        phi = ((phi, y) for x, y in data.rows.in_order() for phi in features.views(x))
        router.learn(data.index, phi, len(data.classes))
        router.solution()  # now, so that the time is the task's and not that of the first to ask
        self.features, self.router, self.classes = features, router, [*self.classes, data.classes]

    # Answering

    def trial(self, x: Tensor) -> object:
        if tuple(x.shape[1:]) != self.problem.input_shape:
            raise ValueError(f"it was built for {self.problem.input_shape}")
        self.features.check(x)
        return x.new_zeros(len(x), self.problem.outputs)

    def class_log_scores(self, x: Tensor) -> Tensor:
        """log P(t, c | x) up to a constant, N×ΣC."""
        return torch.cat([self.router.class_log_scores(self.features(rows)) for rows in torch.split(x, ROWS_AT_ONCE)])

    def logits(self, x: Tensor, task: int) -> Tensor:
        first = sum(map(len, self.classes[:task]))
        return self.class_log_scores(x)[:, first : first + len(self.classes[task])]

    def predict(
        self, x: Tensor, task: Tensor | None, *, marginal: bool, posterior_samples: int, seed: int
    ) -> Prediction:
        columns = tuple((t, label) for t, labels in enumerate(self.classes) for label in labels)
        scores = self.class_log_scores(x)
        if task is not None:
            owner = torch.tensor([t for t, _ in columns], device=x.device)
            scores = scores.masked_fill(owner != task.to(owner.device).unsqueeze(1), -torch.inf)
        return class_prediction(scores.softmax(1), columns, len(self.classes), task)

    # Storing

    def configuration(self) -> dict[str, Any]:
        return {**self.problem.to_json(), "settings": self.settings.to_json(), "seed": self.seed}

    @classmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        settings = RouterSettings.from_json(configuration["settings"])
        return cls(Problem.from_json(configuration), settings, seed=configuration["seed"], device=device)

    def state(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        """A part for each task, which later ones do not change."""
        content: dict[str, Any] = {"classes": [list(classes) for classes in self.classes], "tasks": []}
        parts: dict[str, dict[str, Tensor]] = {}
        content["features"], parts["features"] = self.features.state()
        content["router"], parts["router"] = self.router.state()
        for task in range(len(self.classes)):
            known, parts[f"task-{task:04d}"] = self.router.task_state(task)
            content["tasks"].append(known)
        return content, parts

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        parts = {file: {name: t.to(self.device) for name, t in part.items()} for file, part in files.items()}
        self.classes = [tuple(classes) for classes in content["classes"]]
        self.features.load_state(content["features"], parts["features"])
        tasks = [(known, parts[f"task-{task:04d}"]) for task, known in enumerate(content["tasks"])]
        self._check(tasks, parts["router"])
        self.router.load_state((content["router"], parts["router"]), tasks)

    def _check(self, tasks: Sequence[State], sums: Mapping[str, Tensor]) -> None:
        """Refuse sums that do not fit the features and classes."""
        if len(tasks) != len(self.classes):
            raise CorruptModelError(f"{len(tasks)} tasks are stored, and the classes of {len(self.classes)}")
        if not tasks:
            return
        width = self.features(
            torch.zeros(1, *self.problem.input_shape, device=self.device, dtype=torch.float32)
        ).shape[1]
        for task, (known, tensors) in enumerate(tasks):
            wanted = (len(self.classes[task]), width)
            if tuple(tensors["means"].shape) != wanted or len(known["counts"]) != wanted[0]:
                raise CorruptModelError(f"tensor 'means' of part 'task-{task:04d}' is not {list(wanted)}")
        if sums["scatter"].shape != (width * (width + 1) // 2,):
            raise CorruptModelError(f"tensor 'scatter' of part 'router' is not of {width} features")

    def parameter_count(self) -> int:
        known = [*self.features.state()[1].values()]
        if self.classes:
            solution = self.router.solution()
            known += [solution.weight, solution.intercept]
        return sum(tensor.numel() for tensor in known)

    def memory(self) -> dict[str, int]:
        return {"features": total_bytes(self.features.state()[1].values()), "sums": self.router.bytes}
