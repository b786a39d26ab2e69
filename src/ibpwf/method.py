"""IBP-WF: each task selects rank-1 weight factors from a shared, growing dictionary (Mehta et al., 2021).

Per task: (1) maximize the ELBO over the selection, the strengths and the free factors; (2) fix the selection to
the factors with π̄ ≥ κ and fine-tune; (3) take φ's statistics under the first task's weights; (4) lock.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ibpwf.accel.standins  # noqa: F401 (registers what is faster than the reference)
from ibpwf import method_state
from ibpwf.core import in_progress
from ibpwf.core.elbo import negative_elbo
from ibpwf.core.factorize import factorize
from ibpwf.core.forgetting import forget_task
from ibpwf.core.model import FactorModel
from ibpwf.core.ready_made import ReadyFactors, add_ready_task
from ibpwf.core.reference import accelerated
from ibpwf.core.task_network import TaskNetwork
from ibpwf.core.turns import Shape, Views, check_square, class_logits, turned, turned_labels
from ibpwf.errors import InputError
from ibpwf.inference import fusion
from ibpwf.inference.base import Features, TaskInference, infer_tasks
from ibpwf.inference.fusion import Calibration, ClassScores, by_task
from ibpwf.inference.kinds import make_features, make_inference
from ibpwf.inference.prediction import Prediction, rows_by_value
from ibpwf.inference.router import RidgeRouter
from ibpwf.inference.uncertainty import draw_probabilities, entropy
from ibpwf.limits import check_draws, check_rate
from ibpwf.settings import Factorization, Settings
from ibpwf.storage.network_json import build, describe
from ibpwf.training.method import Counts, Forgotten, Loss, Method, TaskData
from ibpwf.training.objective import share_right
from ibpwf.training.phase import Phase, make_optimizer
from ibpwf.training.rows import ROWS_AT_ONCE, Rows
from ibpwf.training.statistics import estimate_statistics

ELBO, FINETUNE = "elbo", "finetune"

BUILT_WITH = (
    *Factorization.model_fields,
    *("features", "inference", "inference_layers", "random_features", "ridge", "shrinkage", "mirror"),
    *("patch_filters", "patch_grid", "patch_epsilon", "image_shape"),
    *("backbone", "backbone_depths", "backbone_size", "backbone_projection", "image_mean", "image_std"),
    *("router_ridge", "router_precision", "keep_sums_per_task"),
)
"""Settings that all tasks have in common; any other may change from task to task."""

MOST_HELD_OUT = 500
"""Rows of a task: three numbers and a few quantiles are all that is made of them."""


@dataclass(frozen=True)
class Parts:
    """What a user may put in the place of ours: features φ, task inference, the loss of logits and labels, and how an
    optimizer is made from parameters. None stands for what the settings say."""

    features: Features | None = None
    inference: TaskInference | None = None
    loss: Callable[[Tensor, Tensor], Tensor] | None = None
    optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None

    def names(self) -> list[str]:
        """Of those that were given."""
        return [name for name, part in vars(self).items() if part is not None]


class IBPWF(Method):
    """The method on a factorized model."""

    name: ClassVar[str] = "ibpwf"
    summary: ClassVar[str] = "each task selects rank-1 weight factors from a shared, growing dictionary"
    serves_both: ClassVar[bool] = True
    stores: ClassVar[str] = "locked factors, each task's scores, feature means and covariances"
    resumable: ClassVar[bool] = True
    locks: ClassVar[bool] = True

    def __init__(self, model: FactorModel, settings: Settings, parts: Parts | None = None) -> None:
        self.model, self.parts = model, parts or Parts()
        self._take(settings)
        self.sets_rate = self.parts.optimizer is None  # one of the user's own has its own rate
        self.capturable = self.parts.optimizer is None  # nobody knows whether a stranger's step can be recorded
        given = self.parts
        self.features = make_features(settings, model) if given.features is None else given.features
        self.inference = make_inference(settings) if given.inference is None else given.inference
        self.fit_loss = F.cross_entropy if given.loss is None else given.loss
        self.classes: list[tuple[int, ...]] = []
        self.serials: list[int] = []
        self.calibrations: list[Calibration | None] = []
        self._held_out: tuple[Rows, Rows] | None = None  # while a task is learned: what it learns from, and the rest
        self.network: TaskNetwork | None = None
        self._phase = ELBO
        self._examples = 1

    def _take(self, settings: Settings) -> None:
        self.settings = settings
        self.accelerate = settings.accelerate
        self.tf32, self.bfloat16 = settings.precision != "float32", settings.precision == "bfloat16"

    def with_settings(self, settings: Settings) -> Self:
        """The same method with other settings from the next task on; those it was built with must be the same."""
        for name in BUILT_WITH:
            wanted, built = getattr(settings, name), getattr(self.settings, name)
            if wanted != built:
                raise InputError(
                    f"{name} is {wanted!r}, but this was built with {built!r}, which every task reads; keep it, or "
                    "begin a new learner."
                )
        other = self.fork()
        other._take(settings)
        return other

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def template(self) -> nn.Module:
        return self.model.net

    @property
    def image_shape(self) -> Shape:
        """Of images that come as flat rows."""
        return None if self.settings.image_shape == "auto" else self.settings.image_shape

    # Learning

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        s = self.settings
        check_square(next(data.rows.in_order(1))[0], s.turns, self.image_shape)
        start = s.temperature_start or s.temperature
        outputs = s.turns * len(data.classes)
        network = self.model.start_task(outputs, data.generator("init"), start, s.kl_terms)
        network.turns = s.turns
        network.noise = data.generator("noise", self.device)
        network.dropout = data.generator("dropout").get_state()
        self._hold_out(data)
        rows = len(self.rows_to_train(data))
        self.network, self._phase, self._examples = network, ELBO, s.turns * rows
        plan = s.schedule_for(rows)
        rate = s.finetune_learning_rate or plan.learning_rate
        phases = [self._phase_of(ELBO, plan.epochs, plan.batch_size, plan.learning_rate)]
        finetune = self._phase_of(FINETUNE, plan.finetune_epochs, plan.batch_size, rate)
        return [*phases, finetune] if plan.finetune_epochs else phases

    @property
    def least_classes(self) -> int:
        """One, where its images are told apart by how they are turned."""
        return 1 if self.settings.turns > 1 else 2

    def rows_to_train(self, data: TaskData) -> Rows:
        return data.rows if self._held_out is None else self._held_out[0]

    def _phase_of(self, name: str, epochs: int, batch_size: int, rate: float) -> Phase:
        s = self.settings
        return Phase(name, epochs, batch_size, rate, s.optimizer, s.weight_decay, s.clip, s.schedule, s.augment)

    @property
    def _training(self) -> TaskNetwork:
        if self.network is None:
            raise RuntimeError("no task has begun")
        return self.network

    def parameters(self, phase: Phase) -> Sequence[nn.Parameter]:
        self._phase = phase.name
        if phase.name == FINETUNE:
            self._training.fix_selection(self.settings.kappa)
        return self._training.trainable(posterior=phase.name == ELBO)

    def make_optimizer(self, phase: Phase, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        return make_optimizer(phase, parameters) if self.parts.optimizer is None else self.parts.optimizer(parameters)

    def generators(self) -> Sequence[torch.Generator]:
        noise = self._training.noise
        return (noise,) if noise is not None else ()

    def buffers(self) -> Sequence[Tensor]:
        return [self._training.posterior.temperature, *self._training.network.buffers()]

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """The negative ELBO (eq. ELBO); once the selection is fixed, the fit alone."""
        network, turns = self._training, self._training.turns
        classes = network.outputs // turns
        kl = None if self._phase == FINETUNE else network.kl()
        logits = network(turned(x, turns, self.image_shape))
        fit = self.fit_loss(logits, turned_labels(y, turns, classes))
        right = share_right(logits[: len(y), :classes], y)
        if kl is None:
            return Loss(fit, accuracy=right)
        return Loss(negative_elbo(fit, kl, self._examples, self.settings.kl_weight), kl, right)

    def after_backward(self) -> None:
        self._training.release()

    def after_step(self) -> None:
        s = self.settings
        if self._phase == ELBO and s.temperature_start is not None:
            self._training.posterior.temperature.mul_(s.temperature_decay).clamp_(min=s.temperature)

    def after_epoch(self, phase: Phase, epoch: int) -> bool:
        """Grow while there is still an epoch left to train what was added."""
        if phase.name != ELBO or epoch + 1 >= phase.epochs:
            return False
        return self._training.grow(self.settings.kappa) > 0

    def counts(self) -> Counts:
        network = self._training
        if network.selected:
            layers = network.factor_layers
            new = sum(len(layer.free_at) for layer in layers.values())
            return Counts(sum(len(layer.locked_at) for layer in layers.values()) + new, new)
        table = network.active(self.settings.kappa).values()
        return Counts(sum(active for active, _ in table), sum(new for _, new in table))

    def training_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return in_progress.kept(self._training)

    def load_training_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        in_progress.restore(self._training, content, tensors)

    def end_task(self, data: TaskData) -> None:
        network, rows = self._training, self.rows_to_train(data)
        plan = self.settings.schedule_for(len(rows))
        if not plan.finetune_epochs:
            network.fix_selection(self.settings.kappa)
            estimate_statistics(network, rows, plan.batch_size, lambda x: turned(x, network.turns, self.image_shape))
        self.model.finish_task(network, self.settings.kappa)
        self._keep(data, rows)

    def take_task(self, data: TaskData, factors: Mapping[str, ReadyFactors], own: Mapping[str, Tensor]) -> None:
        """Keep a task that was learned elsewhere; `data` tells what its inputs are like."""
        self._hold_out(data)
        add_ready_task(self.model, len(data.classes), factors, own)
        self._keep(data, self.rows_to_train(data))

    def _hold_out(self, data: TaskData) -> None:
        share, apart = self.settings.held_out, data.generator("held out")
        self._held_out = data.rows.apart(share, MOST_HELD_OUT, apart) if share else None

    def _keep(self, data: TaskData, rows: Rows) -> None:
        """What is kept of a task that the model has by now: what its inputs are like, and how sure it may be."""
        if data.index == 0:
            self.features.fit(rows.in_order(), len(rows), data.generator("random features"))
        phi = ((phi, y) for x, y in rows.in_order() for phi in self.features.views(x))
        self.inference.learn(data.index, phi, len(data.classes))
        self.classes.append(data.classes)
        self.serials.append(data.serial)
        self.calibrations.append(None if self._held_out is None else self._calibrated(data.index, self._held_out[1]))
        self.network = self._held_out = None

    def _calibrated(self, task: int, rows: Rows) -> Calibration:
        """What the held-out rows of a task say of it, with all that is learned by now."""
        x, y = rows.tensors()
        scores = self.class_scores(x, "all", distances=True) if isinstance(self.inference, ClassScores) else None
        if self.device.type == "cpu":
            self.inference = self.inference.fork()  # as if not asked yet: training has other threads, so other bits
        return fusion.calibrate(scores, self.logits(x, task), y, self.calibrations)

    def fork(self) -> Self:
        other = copy.copy(self)
        other.model = self.model.fork()
        other.features, other.inference = self.features.fork(other.model), self.inference.fork()
        other.classes, other.serials = list(self.classes), list(self.serials)
        other.calibrations = list(self.calibrations)
        return other

    # Forgetting

    def serial(self, task: int) -> int:
        if task < len(self.serials):
            return self.serials[task]
        return self.serials[-1] + 1 if self.serials else 0

    def forget(self, task: int) -> Forgotten:
        """Remove a task. The next one's prior is the newest remaining task's posterior."""
        if self.name != IBPWF.name:  # a child may count on every task's factors being there
            return super().forget(task)
        self.inference.forget(task)
        removed, kept = forget_task(self.model, task, self.features.unread())
        del self.classes[task], self.serials[task], self.calibrations[task]
        return Forgotten(removed, kept)

    # Answering

    def trial(self, x: Tensor) -> object:
        self.features.check(x)
        with self.model.shell() as net, torch.no_grad():
            out = net(x)
        self.model.check_head(x, out)
        return out

    def logits(self, x: Tensor, task: int) -> Tensor:
        views = self.views(task)
        parts = [self.model.logits(rows, task, views) for rows in torch.split(x, ROWS_AT_ONCE)]
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def views(self, task: int) -> Views:
        """How images are looked at to answer for a task."""
        turns = self.model.tasks[task].turns
        if self.settings.views == "plain" or turns == 1:
            return Views()
        return Views(turns, self.settings.mirror, self.image_shape)

    def class_scores(self, x: Tensor, experts: fusion.Experts, *, distances: bool = False) -> fusion.Scores:
        """What router and experts say of every class of every task (see `inference.fusion`), and how far rows lie
        from each, where that is asked for and known."""
        assert isinstance(self.inference, ClassScores)
        widths = tuple(len(labels) for labels in self.classes)
        parts: list[fusion.Scores] = []
        apart: list[Tensor] = []
        for rows in torch.split(x, ROWS_AT_ONCE):
            phi = self.features(rows)
            parts.append(fusion.look(self.inference.class_log_scores(phi), rows, widths, self.logits, experts))
            if distances and isinstance(self.inference, RidgeRouter):
                apart.append(self.inference.distances(phi))
        own = [part.experts for part in parts if part.experts is not None]
        return fusion.Scores(
            torch.cat([part.router for part in parts]),
            torch.cat(own) if own else None,
            widths,
            self.inference.class_levels() if isinstance(self.inference, RidgeRouter) else None,
            torch.cat(apart) if apart else None,
        )

    def class_log_scores(self, x: Tensor) -> Tensor | None:
        """log P(t, c | x) up to a constant, N×ΣC, where task inference looks at every class (see `inference.fusion`);
        None where it tells tasks alone."""
        if not isinstance(self.inference, ClassScores):
            return None
        router, experts = self.fusion_weights()
        return self.class_scores(x, self.settings.experts if experts else 0).joint(router, experts)

    def fusion_weights(self) -> tuple[float, float]:
        """α of the router and β of the experts: what held-out rows say, or the user's β beside a router of 1."""
        weight = self.settings.expert_weight
        alone = not self.settings.experts or not weight
        if weight != "auto" and not alone:
            return fusion.ROUTER_WEIGHT, weight
        return fusion.weights(self.calibrations, alone=alone)

    def novelty(self, x: Tensor, rate: float) -> Tensor:
        """How unlike everything learned each row is, by router and experts; above 1 for a share `rate` of the rows of
        the tasks themselves."""
        check_rate(rate)
        if not isinstance(self.inference, ClassScores):
            raise InputError(
                f"inference is {self.settings.inference}, which does not look at every class; learn with "
                "inference='router' and held_out above 0 to tell what is new, or with a ContinualClassifier."
            )
        scores = self.class_scores(x, self.settings.experts or "likely", distances=True)
        return fusion.novelty(scores, self.calibrations, rate)

    def task_probabilities(self, x: Tensor) -> Tensor:
        """P(t | φ(x)) for every row and task (eq. phi_task_inference)."""
        joint = self.class_log_scores(x)
        if joint is not None:
            return by_task(joint, [len(labels) for labels in self.classes])
        with accelerated(self.accelerate):
            return infer_tasks(self.inference, self.features, x)

    def class_columns(self) -> tuple[tuple[int, int], ...]:
        return tuple((task, label) for task, labels in enumerate(self.classes) for label in labels)

    def predict(self, x: Tensor, task: Tensor | None, *, marginal: bool, draws: int, seed: int) -> Prediction:
        """A row's answer given its task, or with `marginal` mixed over tasks: p(c|x) = Σ_t ρ_t,c P(t|φ(x)) and its
        entropy (eqs. predictive_marginal, entropy_incr_class)."""
        tasks = len(self.classes)
        joint = self.class_log_scores(x) if task is None and not draws else None
        if joint is not None:
            return self._joint_prediction(joint, marginal)
        if task is None:
            task_probabilities = self.task_probabilities(x)
            task = task_probabilities.argmax(1)
        else:
            task_probabilities = F.one_hot(task, tasks).double()
            marginal = False
        columns = self.class_columns()
        widths = [len(labels) for labels in self.classes]
        first = [0, *accumulate(widths)]
        probabilities = torch.zeros(len(x), len(columns), dtype=torch.float64, device=x.device)
        best = torch.zeros(len(x), dtype=torch.long, device=x.device)
        total, single = torch.zeros(2, len(x), dtype=torch.float64, device=x.device)
        # Grouped by task: every row runs through its own task's network once (all tasks' when marginal). Beside a
        # frozen base, rows of all tasks run through one.
        together = None if marginal or draws else self._logits_of_all(x, task)
        everything = torch.arange(len(x), device=x.device)
        for t, rows in [(t, everything) for t in range(tasks)] if marginal else rows_by_value(task):
            if together is None:
                p, spread = self.class_probabilities(x if len(rows) == len(x) else x[rows], t, draws, seed)
            else:
                p = (together[rows, : widths[t]].double() / self.temperature(t)).softmax(1)
                spread = entropy(p)
            here = slice(first[t], first[t + 1])
            # The label is the inferred task's own best class (the paper's rule), also when marginal.
            own = task == t if marginal else rows
            best[own] = first[t] + (p[own] if marginal else p).argmax(1)
            weight = task_probabilities[:, t] if marginal else torch.ones_like(spread)
            probabilities[rows, here] = p * weight.unsqueeze(1) if marginal else p
            single[rows] += weight * spread
            total[rows] = entropy(p)
        if marginal:
            total = entropy(probabilities)
        labels = torch.tensor([label for _, label in columns], device=x.device)[best]
        return Prediction(
            labels=labels,
            probabilities=probabilities,
            classes=columns,
            task=task,
            task_probabilities=task_probabilities,
            entropy=total,
            mutual_information=(total - single).clamp(min=0) if draws else None,
        )

    def _logits_of_all(self, x: Tensor, task: Tensor) -> Tensor | None:
        """Class scores of rows of several tasks in one pass, where that can be had."""
        if self.model.base != "frozen" or not len(x) or bool((task == task[0]).all()):
            return None
        parts = [
            self.model.mixed_logits(rows, tasks)
            for rows, tasks in zip(torch.split(x, ROWS_AT_ONCE), torch.split(task, ROWS_AT_ONCE), strict=True)
        ]
        found = [part for part in parts if part is not None]
        if len(found) < len(parts):
            return None
        widest = max(part.shape[1] for part in found)
        return torch.cat([F.pad(part, (0, widest - part.shape[1])) for part in found])

    def _joint_prediction(self, joint: Tensor, marginal: bool) -> Prediction:
        """Answers from log P(t, c | x): the likeliest class of all, and its task."""
        columns = self.class_columns()
        owner, label = torch.tensor(columns, device=joint.device).unbind(1)
        best = joint.argmax(1)
        others = owner != owner[best].unsqueeze(1)
        probabilities = (joint if marginal else joint.masked_fill(others, -torch.inf)).softmax(1)
        return Prediction(
            labels=label[best],
            probabilities=probabilities,
            classes=columns,
            task=owner[best],
            task_probabilities=by_task(joint, [len(labels) for labels in self.classes]),
            entropy=entropy(probabilities),
        )

    def class_probabilities(self, x: Tensor, task: int, draws: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
        """p(y|x,t) and the mean entropy of one draw; with no draws, the locked selection is the only model."""
        if draws:
            check_draws(draws, sum(one.inputs * one.outputs for one in self.model.layers.values()))
            generator = torch.Generator(self.device).manual_seed((seed * 1_000_003 + self.serials[task]) % (1 << 63))
            stacked = self.model.drawn_states(task, draws, generator)
            classes, views = self.model.tasks[task].classes, self.views(task)
            with self.model.shell() as net:
                return draw_probabilities(
                    net,
                    stacked,
                    x,
                    logits=lambda of, rows: class_logits(of, rows, classes, views) / self.temperature(task),
                )
        p = (self.logits(x, task).double() / self.temperature(task)).softmax(1)
        return p, entropy(p)

    def temperature(self, task: int) -> float:
        """What a task's class scores are divided by: 1, or what its held-out rows say."""
        calibration = self.calibrations[task]
        return 1.0 if calibration is None else calibration.temperature

    # Storing

    def use(self, task: int) -> dict[str, dict[str, int]]:
        return {name: asdict(use) for name, use in self.model.use(task).items()}

    def parameter_count(self) -> int:
        return sum(self.model.stored_numbers().values())

    def memory(self) -> dict[str, int]:
        states = [self.features.state(), self.inference.state()]
        states += [self.inference.task_state(task) for task in range(len(self.classes))]
        statistics = sum(tensor.nbytes for _, tensors in states for tensor in tensors.values())
        return {"factors and tasks": 4 * self.parameter_count(), "feature statistics": statistics}

    def configuration(self) -> dict[str, Any]:
        """The model folder of `Learner` also keeps the network's own tensors, so it stores this itself."""
        return {"network": describe(self.model.net), "settings": self.settings.to_json()}

    @classmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        settings = Settings.from_json(configuration["settings"])
        return cls(factorize(build(configuration["network"]), **settings.factorization).to(device), settings)

    def state(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        return method_state.state_of(self)

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        method_state.take_state(self, content, files)
