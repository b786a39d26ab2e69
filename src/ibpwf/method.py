"""IBP-WF: each task selects rank-1 weight factors from a shared, growing dictionary (Mehta et al., 2021).

Per task: (1) maximize the ELBO over the selection, the strengths and the free factors; (2) fix the selection to
the factors with π̄ ≥ κ and fine-tune; (3) take φ's statistics under the first task's weights; (4) lock.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ibpwf.fast.registered  # noqa: F401 (registers what is faster than the reference)
from ibpwf import method_state
from ibpwf.distributed import Group
from ibpwf.errors import InputError
from ibpwf.factors import resume as in_progress
from ibpwf.factors.elbo import negative_elbo
from ibpwf.factors.encoding import MOST_ROWS, FittedToTask
from ibpwf.factors.factorize import factorize
from ibpwf.factors.forget import forget_task
from ibpwf.factors.merge import check_head
from ibpwf.factors.model import FactorModel
from ibpwf.factors.ready_made import ReadyFactors, add_ready_task
from ibpwf.factors.selection import further_factors, sufficient_selection
from ibpwf.factors.task_network import TaskNetwork
from ibpwf.inference.base import Features, TaskInference
from ibpwf.inference.kinds import make_features, make_inference
from ibpwf.inference.versions import Versions
from ibpwf.method_keeping import KeepingMethod
from ibpwf.settings import Factorization, Schedule, Settings
from ibpwf.storage.network_json import build, describe
from ibpwf.torch_state import depends_on_default
from ibpwf.training.linear import FEWEST_ROWS
from ibpwf.training.method import Counts, Forgotten, Loss, TaskData
from ibpwf.training.objective import share_right
from ibpwf.training.phase import Phase, learn_faster, make_optimizer
from ibpwf.training.rows import Rows
from ibpwf.training.statistics import estimate_statistics, has_batch_norm
from ibpwf.training.stopping import tempered_loss
from ibpwf.views import check_square, turned, turned_labels

ELBO, FINETUNE = "elbo", "finetune"

BUILT_WITH = (
    *Factorization.model_fields,
    *("features", "inference", "inference_layers", "random_features", "ridge", "shrinkage", "mirror"),
    *("patch_filters", "patch_sizes", "patch_grid", "patch_epsilon"),
    *("backbone", "backbone_depths", "backbone_grid", "backbone_size", "backbone_projection"),
    *("image_mean", "image_std", "image_shape"),
    *("router_ridge", "router_precision", "keep_sums_per_task"),
)
"""Settings that all tasks have in common; any other may change from task to task."""

DISTILLATION = 0.25
"""How much a new version of a task minds answering otherwise than the old one, beside answering rightly. Of 0, 0.25,
0.5 and 1 this kept most of what the old rows had taught (docs/python.md has what it does)."""

SELECTION_ROWS, SELECTION_BATCH = 500, 250
"""Rows by which it is decided whether the selected factors suffice, and how many of them are answered at once."""

PATIENCE = 500
"""Steps without gain after which training ends, in no fewer than 3 and no more than 15 epochs."""


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


class IBPWF(KeepingMethod):
    """The method on a factorized model."""

    name: ClassVar[str] = "ibpwf"
    summary: ClassVar[str] = "each task selects rank-1 weight factors from a shared, growing dictionary"
    serves_both: ClassVar[bool] = True
    stores: ClassVar[str] = "locked factors, each task's scores, feature means and covariances"
    resumable: ClassVar[bool] = True
    locks: ClassVar[bool] = True

    def __init__(self, model: FactorModel, settings: Settings, parts: Parts | None = None) -> None:
        self.model, self.parts = model, parts or Parts()
        self.sets_rate = self.parts.optimizer is None  # one of the user's own has its own rate
        self.capturable = self.parts.optimizer is None  # nobody knows whether a stranger's step can be recorded
        given = self.parts
        depends_on_default(given.features, given.inference, given.loss, given.optimizer)
        self.features = make_features(settings, model) if given.features is None else given.features
        self.inference = make_inference(settings) if given.inference is None else given.inference
        self._take(settings)
        self.fit_loss = F.cross_entropy if given.loss is None else given.loss
        self.versions = Versions()
        self.network: TaskNetwork | None = None
        self._old_version: nn.Module | None = None  # while a new one is learned
        self._data: TaskData | None = None  # while a task is learned
        self._phase = ELBO
        self._examples = 1

    def _take(self, settings: Settings) -> None:
        if settings.second_opinion and not self.inference.has_opinions:
            raise InputError(
                f"second_opinion is True, and {type(self.inference).__name__} has no regression on classes to keep; "
                "set inference='router', or second_opinion=False."
            )
        self.settings = settings
        self.accelerate = settings.accelerate
        self.tf32, self.bfloat16 = settings.precision != "float32", settings.precision == "bfloat16"

    def join(self, group: Group) -> None:
        """Learn together with other processes from now on."""
        self.group = self.inference.group = group

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
    def template(self) -> nn.Module:
        return self.model.net

    def trial(self, x: Tensor) -> object:
        with self.model.shell() as net, torch.no_grad():
            out = net(x)
        if not isinstance(out, Tensor):
            return out  # no class scores: features need not be looked for
        self.features.check(x)
        check_head(self.model, x, out)
        return out

    # Learning

    def begin_task(self, data: TaskData) -> Sequence[Phase]:
        s = self.settings
        before = self.model.tasks[self.place(data.index)] if data.more else None
        turns = s.turns if before is None else before.turns
        check_square(next(data.rows.in_order(1))[0], turns, self.image_shape)
        start = s.temperature_start or s.temperature
        outputs = turns * len(data.classes)
        network = self.model.start_task(outputs, data.generator("init"), start, s.kl_terms, before)
        network.turns = turns
        network.noise = data.generator("noise", self.device)
        network.dropout = data.generator("dropout").get_state()
        self.hold_out(data)
        self._data = data
        self._old_version = None if before is None else self.model.ready(self.place(data.index))
        for module in network.modules():
            if isinstance(module, FittedToTask) and before is None:  # a new version reads as the old one does
                module.fit(x for x, _ in self.rows_to_train(data).sample(MOST_ROWS, data.generator("sample")))
        rows = len(self.rows_to_train(data))
        self.network, self._phase, self._examples = network, ELBO, turns * rows
        plan = self._plan(rows)
        if outputs == 1:
            return []  # there is nothing to tell apart: the answer is that class
        elbo = self._phase_of(ELBO, plan.epochs, plan.batch_size, plan.learning_rate)
        finetune = self._phase_of(FINETUNE, plan.finetune_epochs, plan.batch_size, plan.learning_rate)
        if self._is_stopped:
            steps = max(rows // plan.batch_size, 1)
            patience = min(max(math.ceil(PATIENCE / steps), 3), 15)
            elbo = replace(elbo, patience=patience, schedule="constant")
            finetune = replace(finetune, patience=max(finetune.epochs // 2, 3), schedule="cosine")
        return [elbo, finetune] if plan.finetune_epochs else [elbo]

    @property
    def _is_stopped(self) -> bool:
        """Whether held-out rows say when the task that is learned has been trained for long enough."""
        there = self._held_out is not None and len(self._held_out[1]) >= FEWEST_ROWS
        return self.settings.early_stopping and there and not has_batch_norm(self.model.net)

    def _plan(self, rows: int) -> Schedule:
        return self.settings.schedule_for(rows, stopped=self._is_stopped)

    def held_out_loss(self) -> float | None:
        if not self._is_stopped:
            return None
        assert self._held_out is not None
        network, classes = self._training, self._training.outputs // self._training.turns
        parts = [network.answers(x)[:, :classes] for x, _ in self._held_out[1].in_order()]
        held = self._held_out[1]
        return tempered_loss(torch.cat(parts), held.tensors()[1], getattr(held, "weights", None))

    @property
    def least_classes(self) -> int:
        """One: task inference tells it from the classes of other tasks."""
        return 1

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
            self._fix_selection()
        return self._training.trainable(posterior=phase.name == ELBO)

    def _fix_selection(self) -> None:
        """Keep the factors with π̄ ≥ κ, and further ones where the accuracy on some of the task's rows needs them."""
        s, network = self.settings, self._training
        classes = network.outputs // network.turns
        if network.selected or classes == 1 or s.selection_loss == 100:
            network.fix_selection(s.kappa)
            return
        x, y = self._rows_to_select_by()
        pieces = list(zip(*(one.tensor_split(math.ceil(len(y) / SELECTION_BATCH)) for one in (x, y)), strict=True))

        def accuracy(selection: Mapping[str, Tensor] | None) -> float:
            right = [network.answers_with(some, selection)[:, :classes].argmax(1) == known for some, known in pieces]
            return 100 * float(torch.cat(right).double().mean())

        chosen = sufficient_selection(network, s.kappa, accuracy, s.selection_loss)
        for name, mask in chosen.items():
            agreed = mask.to(torch.uint8)
            self.group.take_from_first([agreed])
            chosen[name] = agreed.bool()
        network.fix_selection(s.kappa, chosen)

    def _rows_to_select_by(self) -> tuple[Tensor, Tensor]:
        """Those that nothing is learned from, where there are enough; else some that are drawn at random."""
        if self._held_out is not None and len(self._held_out[1]) >= FEWEST_ROWS:
            return self._held_out[1].tensors()
        assert self._data is not None
        rows = self.rows_to_train(self._data)
        some = list(rows.sample(SELECTION_ROWS, self._data.generator("selection")))
        return torch.cat([x for x, _ in some]), torch.cat([y for _, y in some])

    def make_optimizer(self, phase: Phase, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
        if self.parts.optimizer is not None:
            return self.parts.optimizer(parameters)
        optimizer, times = make_optimizer(phase, parameters), self.settings.selection_rate
        if phase.name == ELBO and times != 1:
            learn_faster(optimizer, self._training.posterior.selection(), times)
        return optimizer

    def generators(self) -> Sequence[torch.Generator]:
        noise = self._training.noise
        return (noise,) if noise is not None else ()

    def buffers(self) -> Sequence[Tensor]:
        """What training changes besides parameters; the base and locked factors, which it does not, are large."""
        network = self._training
        fixed = {id(one) for layer in network.factor_layers.values() for one in layer.buffers(recurse=False)}
        own = (buffer for buffer in network.network.buffers() if id(buffer) not in fixed)
        return [network.posterior.temperature, *own]

    def trained_networks(self) -> Sequence[nn.Module]:
        return (self._training,)

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """The negative ELBO (eq. ELBO); once the selection is fixed, the fit alone."""
        network, turns = self._training, self._training.turns
        classes = network.outputs // turns
        kl = None if self._phase == FINETUNE else network.kl()
        given = turned(x, turns, self.image_shape)
        logits = network(given)
        fit = self.fit_loss(logits, turned_labels(y, turns, classes))
        if self._old_version is not None:
            fit = fit + DISTILLATION * distillation(logits, self._old_version(given)[:, : network.outputs])
        right = share_right(logits[: len(y), :classes], y)
        if kl is None:
            return Loss(fit, accuracy=right)
        return Loss(negative_elbo(fit, kl, self._examples), kl, right)

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
        plan = self._plan(len(rows))
        self.trains_what_it_keeps = bool(plan.finetune_epochs)
        if not plan.finetune_epochs:
            self._fix_selection()
        self.further_factors = further_factors(network, self.settings.kappa)
        batches = rows.epoch(max(plan.batch_size, 2), data.generator("statistics"))  # one row has no variance
        estimate_statistics(network, ((turned(x, network.turns, self.image_shape), y) for x, y in batches))
        self.model.finish_task(network, self.settings.kappa)
        self.keep(data, rows)
        self.network = self._old_version = self._data = None

    def take_task(self, data: TaskData, factors: Mapping[str, ReadyFactors], own: Mapping[str, Tensor]) -> None:
        """Keep a task that was learned elsewhere; `data` tells what its inputs are like."""
        self.hold_out(data)
        add_ready_task(self.model, len(data.classes), factors, own)
        self.keep(data, self.rows_to_train(data))

    def fork(self) -> Self:
        other = copy.copy(self)
        other.model = self.model.fork()
        other.features, other.inference = self.features.fork(other.model), self.inference.fork()
        return other

    # Forgetting

    def serial(self, task: int) -> int:
        return self.versions[task].serial

    def next_serial(self, tasks: int) -> int:
        return self.versions.all[-1].serial + 1 if self.versions.all else 0

    def forget(self, task: int) -> Forgotten:
        """Remove a task with all its versions, or an older version, of which task inference knows nothing. The next
        task's prior is the posterior of what was learned last of all that remains."""
        if self.name != IBPWF.name:  # a child may count on every task's factors being there
            return super().forget(task)
        versions = self.versions
        whole = task < versions.tasks
        if whole:
            self.inference.forget(task)
        places = versions.of_task(task) if whole else [versions.places[task]]
        removed, kept = forget_task(self.model, places, self.features.unread())
        self.versions = versions.without(places)
        return Forgotten(removed, kept)

    # Storing

    def use(self, task: int) -> dict[str, dict[str, int]]:
        return {name: asdict(use) for name, use in self.model.use(self.place(task)).items()}

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

    def state(self) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Tensor]]]:
        return method_state.state_of(self)

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        method_state.take_state(self, content, files)


def distillation(logits: Tensor, old: Tensor) -> Tensor:
    """KL(old ‖ new): how much a network answers otherwise than an old one (Li and Hoiem, "Learning without
    forgetting", 2016)."""
    return F.kl_div(logits.log_softmax(1), old.detach().softmax(1), reduction="batchmean")
