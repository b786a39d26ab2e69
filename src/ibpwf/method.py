"""IBP-WF: each task selects rank-1 weight factors from a shared, growing dictionary (Mehta et al., 2021).

Per task: (1) maximise the ELBO over the selection, the strengths and the free factors; (2) fix the selection to
the factors with π̄ ≥ κ and fine-tune; (3) take φ's statistics under the first task's weights; (4) lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import accumulate
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from ibpwf.accel.folding import linear_features
from ibpwf.accel.screening import rows_by_value
from ibpwf.core import in_progress
from ibpwf.core.forgetting import Forgotten, forget_task
from ibpwf.core.model import FactorModel, factorize
from ibpwf.core.task_network import TaskNetwork
from ibpwf.errors import InputError
from ibpwf.inference.features.layer import check_layers, features, first_layer, unread_by
from ibpwf.inference.features.random import RandomFeatures, automatic_width
from ibpwf.inference.gaussian import GaussianTaskInference, MomentAccumulator, Moments
from ibpwf.inference.prediction import Prediction
from ibpwf.inference.shared import SharedGaussianInference, class_moments
from ibpwf.inference.uncertainty import draw_probabilities, entropy
from ibpwf.method_state import state_of, take_state
from ibpwf.settings import Settings
from ibpwf.storage.network_json import build, describe
from ibpwf.training.method import Counts, Method, TaskData
from ibpwf.training.phase import Phase

ELBO, FINETUNE = "elbo", "finetune"
ROWS_AT_ONCE = 4096


def negative_elbo(logits: Tensor, y: Tensor, kl: Tensor, examples: int, kl_weight: float = 1.0) -> Tensor:
    """−L_t / N_t = mean cross-entropy + KL / N_t  (eq. ELBO), a mini-batch standing for the task."""
    return F.cross_entropy(logits, y) + kl * (kl_weight / examples)


@torch.no_grad()
def estimate_statistics(network: nn.Module, x: Tensor, batch_size: int) -> None:
    """Give batch normalisation the statistics of the weights as they are now, averaged over all of `x`: those it
    kept while weights were sampled belong to other weights, and a network that answered with them would fail."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
    for rows in torch.split(x, batch_size):
        if len(rows) > 1:
            network(rows)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


class IBPWF(Method):
    """The method on a factorised model."""

    name: ClassVar[str] = "ibpwf"
    summary: ClassVar[str] = "each task selects rank-1 weight factors from a shared, growing dictionary"
    serves_both: ClassVar[bool] = True
    stores: ClassVar[str] = "locked factors, each task's scores, feature means and covariances"
    resumable: ClassVar[bool] = True
    locks: ClassVar[bool] = True

    def __init__(self, model: FactorModel, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.tf32, self.bfloat16 = settings.precision != "float32", settings.precision == "bfloat16"
        layers = settings.inference_layers
        self.random: RandomFeatures | None = None  # drawn when the first task ends
        if layers == "random":
            self.inference_layers: tuple[str, ...] = ()
        else:
            self.inference_layers = (first_layer(model.net),) if layers == "auto" else tuple(layers)
        check_layers(model.net, self.inference_layers)
        if settings.inference_features == "factors" and len(self.inference_layers) != 1:
            raise InputError(
                f"inference_features is factors, which reads one layer, but inference_layers names "
                f"{len(self.inference_layers)}; name one, or set inference_features=outputs."
            )
        shared = settings.gaussians == "shared"
        kind = SharedGaussianInference if shared else GaussianTaskInference
        self.inference = kind(settings.ridge, settings.shrinkage)
        self.classes: list[tuple[int, ...]] = []
        self.serials: list[int] = []
        self.network: TaskNetwork | None = None
        self._phase = ELBO
        self._examples = 1

    @property
    def device(self) -> torch.device:
        return self.model.device

    # Learning

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        s = self.settings
        start = s.temperature_start or s.temperature
        network = self.model.start_task(len(data.classes), data.generator("init"), start, s.kl_terms)
        network.noise = data.generator("noise", self.device)
        network.dropout = data.generator("dropout").get_state()
        self.network, self._phase, self._examples = network, ELBO, len(data.y)
        phases = [self._phase_of(ELBO, s.epochs, s.learning_rate)]
        if s.finetune_epochs:
            rate = s.finetune_learning_rate or s.learning_rate
            phases.append(self._phase_of(FINETUNE, s.finetune_epochs, rate))
        return phases

    def _phase_of(self, name: str, epochs: int, rate: float) -> Phase:
        s = self.settings
        return Phase(
            name,
            epochs,
            s.batch_size,
            rate,
            weight_decay=s.weight_decay,
            clip=s.clip,
            schedule=s.schedule,
            augment=s.augment,
        )

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

    def generators(self) -> Sequence[torch.Generator]:
        noise = self._training.noise
        return (noise,) if noise is not None else ()

    def buffers(self) -> Sequence[Tensor]:
        return [self._training.posterior.temperature, *self._training.network.buffers()]

    def loss(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        network = self._training
        if self._phase == FINETUNE:
            loss = F.cross_entropy(network(x), y)
            return loss, torch.zeros_like(loss)
        kl = network.kl()
        return negative_elbo(network(x), y, kl, self._examples, self.settings.kl_weight), kl

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
        network = self._training
        if not self.settings.finetune_epochs:
            network.fix_selection(self.settings.kappa)
            estimate_statistics(network, data.x, self.settings.batch_size)
        self.model.finish_task(network, self.settings.kappa)
        try:
            if self.settings.inference_layers == "random" and data.index == 0:
                width = self.settings.random_features
                width = automatic_width(len(data.x)) if width == "auto" else width
                self.random = RandomFeatures.drawn(data.x, width, data.generator("random features"))
            groups = self._statistics(data)
            if self.inference.absolute_ridge is None:
                self.inference.set_scale(groups)
            for group in groups:
                self.inference.add(data.index, group)
            self.classes.append(data.classes)
            self.serials.append(data.index if data.serial is None else data.serial)
        except BaseException:
            self.drop_last_task()
            raise
        self.network = None

    def drop_last_task(self) -> None:
        """Undo `end_task`, or as much of it as was done."""
        last = len(self.model.tasks) - 1
        self.inference.keep(sum(owner < last for owner in self.inference.owner))
        del self.classes[last:], self.serials[last:]
        self.model.drop_last_task()

    def _statistics(self, data: TaskData) -> list[Moments]:
        """Moments of φ under the first task's weights (eq. parameter_est), per task or per class."""
        batches = zip(torch.split(data.x, ROWS_AT_ONCE), torch.split(data.y, ROWS_AT_ONCE), strict=True)
        if self.settings.gaussians == "shared":
            return class_moments(((self.features(x), y) for x, y in batches), len(data.classes))
        per_class = self.settings.gaussians == "class"
        sums = [MomentAccumulator() for _ in (data.classes if per_class else [0])]
        for x, y in batches:
            phi = self.features(x)
            for number, accumulator in enumerate(sums):
                rows = phi[y == number] if per_class else phi
                if len(rows):
                    accumulator.add(rows)
        return [accumulator.finish() for accumulator in sums]

    def abandon_task(self) -> None:
        self.network = None

    # Forgetting

    def serial(self, task: int) -> int:
        if task < len(self.serials):
            return self.serials[task]
        return self.serials[-1] + 1 if self.serials else 0

    def forget(self, task: int) -> Forgotten:
        """Remove a task. The next one's prior is the newest remaining task's posterior."""
        if self.name != IBPWF.name:  # a child may count on every task's factors being there
            return super().forget(task)
        forgotten = forget_task(self.model, task, unread_by(self.model.net, self.inference_layers))
        self.inference.forget(task)
        del self.classes[task], self.serials[task]
        return forgotten

    # Answering

    def trial(self, x: Tensor) -> object:
        net = self.model.net.eval()
        if self.inference_layers:  # a layer that never runs is named now
            features(net, dict(net.state_dict()), self.inference_layers, x)
        with torch.no_grad():
            out = net(x)
        self.model.check_head(x, out)
        return out

    def logits(self, x: Tensor, task: int) -> Tensor:
        return self.model.logits(x, task)

    def features(self, x: Tensor) -> Tensor:
        """φ(x), always under the weights of the task that was learnt first, or from the fixed random layer."""
        if self.random is not None:
            return self.random(x)
        if self.settings.inference_features == "factors":
            state = self.model.factor_state(self.inference_layers[0])
        else:
            state = self.model.reference_state()
        return features(self.model.net, state, self.inference_layers, x)

    def task_log_probabilities(self, x: Tensor) -> Tensor:
        """log P(t | φ(x)) for every row and task."""
        return self._for_rows(self.inference.task_log_probabilities, x)

    def task_probabilities(self, x: Tensor) -> Tensor:
        """P(t | φ(x)) for every row and task; it costs less than the logarithms, of which most are never seen."""
        layer = None
        if self.random is None and self.settings.inference_features == "outputs":
            layer = linear_features(self.model.net, self.model.reference_state(), self.inference_layers)
        if layer is None or x.dtype != torch.float32:
            return self._for_rows(self.inference.task_probabilities, x)
        return self.inference.task_probabilities_through(layer, x, len(self.classes))

    def _for_rows(self, ask: Callable[[Tensor, int], Tensor], x: Tensor) -> Tensor:
        return torch.cat([ask(self.features(rows), len(self.classes)) for rows in torch.split(x, ROWS_AT_ONCE)])

    def class_columns(self) -> tuple[tuple[int, int], ...]:
        return tuple((task, label) for task, labels in enumerate(self.classes) for label in labels)

    def predict(self, x: Tensor, task: Tensor | None, *, marginal: bool, draws: int, seed: int) -> Prediction:
        tasks = len(self.classes)
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
        # Grouped by task: every row runs through its own task's network once (all tasks' when marginal).
        everything = torch.arange(len(x), device=x.device)
        for t, rows in [(t, everything) for t in range(tasks)] if marginal else rows_by_value(task):
            p, spread = self._task_probabilities(x if len(rows) == len(x) else x[rows], t, draws, seed)
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

    def _task_probabilities(self, x: Tensor, task: int, draws: int, seed: int) -> tuple[Tensor, Tensor]:
        """p(y|x,t) and the mean entropy of one draw; with no draws, the locked selection is the only model."""
        if draws:
            generator = torch.Generator(self.device).manual_seed(seed * 1_000_003 + self.serials[task])
            stacked = self.model.drawn_states(task, draws, generator)
            return draw_probabilities(self.model.net, stacked, x, outputs=self.model.tasks[task].outputs)
        parts = [self.model.logits(rows, task).double().softmax(1) for rows in torch.split(x, ROWS_AT_ONCE)]
        p = torch.cat(parts)
        return p, entropy(p)

    # Storing

    def use(self, task: int) -> dict[str, dict[str, int]]:
        return {name: asdict(use) for name, use in self.model.use(task).items()}

    def parameter_count(self) -> int:
        return self.model.parameters()

    def memory(self) -> dict[str, int]:
        means = sum(g.mean.numel() for g in self.inference.groups)
        covariances = {id(g.covariance): g.covariance.numel() for g in self.inference.groups}  # a task's may be one
        random = sum(t.numel() for t in self.random.tensors().values()) if self.random else 0
        moments = 8 * (means + sum(covariances.values())) + 4 * random
        return {"factors and tasks": 4 * self.model.parameters(), "feature statistics": moments}

    def configuration(self) -> dict[str, Any]:
        """The model folder of `Learner` also keeps the network's own tensors, so it stores this itself."""
        return {"network": describe(self.model.net), "settings": self.settings.to_json()}

    @classmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        settings = Settings.from_json(configuration["settings"])
        names = {key: getattr(settings, key) for key in ("alpha", "max_factors", "heads", "strength_std", "init")}
        return cls(factorize(build(configuration["network"]), **names).to(device), settings)

    def state(self) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        return state_of(self)

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        take_state(self, content, files)
