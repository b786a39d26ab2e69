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
from torch.nn.modules.batchnorm import _BatchNorm

import ibpwf.accel.standins  # noqa: F401 (registers what is faster than the reference)
from ibpwf import method_state
from ibpwf.core import in_progress
from ibpwf.core.elbo import negative_elbo
from ibpwf.core.factorize import factorize
from ibpwf.core.forgetting import forget_task
from ibpwf.core.model import FactorModel
from ibpwf.core.reference import accelerated
from ibpwf.core.task_network import TaskNetwork
from ibpwf.errors import InputError
from ibpwf.inference.base import Features, TaskInference, infer_tasks
from ibpwf.inference.kinds import make_features, make_inference
from ibpwf.inference.prediction import Prediction, rows_by_value
from ibpwf.inference.uncertainty import draw_probabilities, entropy
from ibpwf.limits import check_draws
from ibpwf.settings import Factorization, Settings
from ibpwf.storage.network_json import build, describe
from ibpwf.training.method import Counts, Forgotten, Loss, Method, TaskData
from ibpwf.training.objective import share_right
from ibpwf.training.phase import Phase, make_optimizer
from ibpwf.training.rows import ROWS_AT_ONCE, Rows

ELBO, FINETUNE = "elbo", "finetune"

BUILT_WITH = (
    *Factorization.model_fields,
    *("features", "inference", "inference_layers", "random_features", "ridge", "shrinkage"),
)
"""Settings that all tasks have in common; any other may change from task to task."""


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

    # Learning

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        s = self.settings
        start = s.temperature_start or s.temperature
        network = self.model.start_task(len(data.classes), data.generator("init"), start, s.kl_terms)
        network.noise = data.generator("noise", self.device)
        network.dropout = data.generator("dropout").get_state()
        self.network, self._phase, self._examples = network, ELBO, len(data.rows)
        plan = s.schedule_for(len(data.rows))
        rate = s.finetune_learning_rate or plan.learning_rate
        phases = [self._phase_of(ELBO, plan.epochs, plan.batch_size, plan.learning_rate)]
        finetune = self._phase_of(FINETUNE, plan.finetune_epochs, plan.batch_size, rate)
        return [*phases, finetune] if plan.finetune_epochs else phases

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
        network = self._training
        if self._phase == FINETUNE:
            logits = network(x)
            return Loss(self.fit_loss(logits, y), accuracy=share_right(logits, y))
        kl = network.kl()
        logits = network(x)
        total = negative_elbo(self.fit_loss(logits, y), kl, self._examples, self.settings.kl_weight)
        return Loss(total, kl, share_right(logits, y))

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
        plan = self.settings.schedule_for(len(data.rows))
        if not plan.finetune_epochs:
            network.fix_selection(self.settings.kappa)
            estimate_statistics(network, data.rows, plan.batch_size)
        self.model.finish_task(network, self.settings.kappa)
        if data.index == 0:
            self.features.fit(data.rows.in_order(), len(data.rows), data.generator("random features"))
        phi = ((self.features(x), y) for x, y in data.rows.in_order())
        self.inference.learn(data.index, phi, len(data.classes))
        self.classes.append(data.classes)
        self.serials.append(data.serial)
        self.network = None

    def fork(self) -> Self:
        other = copy.copy(self)
        other.model = self.model.fork()
        other.features, other.inference = self.features.fork(other.model), self.inference.fork()
        other.classes, other.serials = list(self.classes), list(self.serials)
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
        del self.classes[task], self.serials[task]
        return Forgotten(removed, kept)

    # Answering

    def trial(self, x: Tensor) -> object:
        self.features.check(x)
        with self.model.shell() as net, torch.no_grad():
            out = net(x)
        self.model.check_head(x, out)
        return out

    def logits(self, x: Tensor, task: int) -> Tensor:
        return self.model.logits(x, task)

    def task_probabilities(self, x: Tensor) -> Tensor:
        """P(t | φ(x)) for every row and task (eq. phi_task_inference)."""
        with accelerated(self.accelerate):
            return infer_tasks(self.inference, self.features, x)

    def class_columns(self) -> tuple[tuple[int, int], ...]:
        return tuple((task, label) for task, labels in enumerate(self.classes) for label in labels)

    def predict(self, x: Tensor, task: Tensor | None, *, marginal: bool, draws: int, seed: int) -> Prediction:
        """A row's answer given its task, or with `marginal` mixed over tasks: p(c|x) = Σ_t ρ_t,c P(t|φ(x)) and its
        entropy (eqs. predictive_marginal, entropy_incr_class)."""
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
            p, spread = self.class_probabilities(x if len(rows) == len(x) else x[rows], t, draws, seed)
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

    def class_probabilities(self, x: Tensor, task: int, draws: int = 0, seed: int = 0) -> tuple[Tensor, Tensor]:
        """p(y|x,t) and the mean entropy of one draw; with no draws, the locked selection is the only model."""
        if draws:
            check_draws(draws, sum(one.inputs * one.outputs for one in self.model.layers.values()))
            generator = torch.Generator(self.device).manual_seed((seed * 1_000_003 + self.serials[task]) % (1 << 63))
            stacked = self.model.drawn_states(task, draws, generator)
            with self.model.shell() as net:
                return draw_probabilities(net, stacked, x, outputs=self.model.tasks[task].outputs)
        parts = [self.model.logits(rows, task).double().softmax(1) for rows in torch.split(x, ROWS_AT_ONCE)]
        p = torch.cat(parts)
        return p, entropy(p)

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


@torch.no_grad()
def estimate_statistics(network: nn.Module, rows: Rows, batch_size: int) -> None:
    """Give batch normalization the statistics of the weights as they are now, averaged over all rows: those it kept
    while weights were sampled belong to other weights, and a network that answered with them would fail."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean over batches
    for x, _ in rows.in_order(batch_size):
        if len(x) > 1:
            network(x)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
