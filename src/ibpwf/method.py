"""IBP-WF: each task selects rank-1 weight factors from a shared, growing dictionary (Mehta et al., 2021).

Per task: (1) maximize the ELBO over the selection, the strengths and the free factors; (2) fix the selection to
the factors with π̄ ≥ κ and fine-tune; (3) take φ's statistics under the first task's weights; (4) lock. Where the
task is known, its expert answers; where it is not, task inference chooses it, alone or joined with the experts' class
scores.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import ibpwf.fast.registered  # noqa: F401 (registers what is faster than the reference)
from ibpwf import method_state
from ibpwf.adapters import adapter_classes, as_task, read_adapter
from ibpwf.data.rows import ROWS_PER_PASS, Again, Rows
from ibpwf.dispatch import accelerated
from ibpwf.distributed import Group
from ibpwf.errors import InputError
from ibpwf.factors import resume as in_progress
from ibpwf.factors.elbo import negative_elbo
from ibpwf.factors.factorize import factorize
from ibpwf.factors.forget import forget_task
from ibpwf.factors.merge import check_head
from ibpwf.factors.model import FactorModel
from ibpwf.factors.ready_made import add_ready_task
from ibpwf.factors.row_tasks import RowTasks
from ibpwf.factors.selection import further_factors, sufficient_selection
from ibpwf.factors.task_network import TaskNetwork
from ibpwf.inference import fusion
from ibpwf.inference.base import Context, Features, TaskInference, infer_tasks
from ibpwf.inference.fusion import Calibration, by_task
from ibpwf.inference.opinion import EXPERT, REGRESSION, Opinion
from ibpwf.inference.prediction import OwnTaskPrediction, Prediction, rows_by_value
from ibpwf.inference.uncertainty import entropy, sampled_probabilities
from ibpwf.inference.versions import Version, Versions
from ibpwf.inputs import named_tensors
from ibpwf.likelihoods import RowScores
from ibpwf.limits import check_posterior_samples, check_rate
from ibpwf.linear import FEWEST_ROWS
from ibpwf.packing import Packing, find_packing, names_inputs
from ibpwf.settings import Schedule, Settings
from ibpwf.storage.checkpoint_folder import digest_of
from ibpwf.storage.network_json import build, describe, signature
from ibpwf.storage.tensor_checks import CorruptModelError
from ibpwf.table_encoding import MOST_ROWS, FittedToTask
from ibpwf.torch_state import depends_on_default
from ibpwf.training.method import Counts, Forgotten, Loss, Method, TaskData
from ibpwf.training.phase import Phase, learn_faster, make_optimizer
from ibpwf.training.statistics import estimate_statistics, has_batch_norm
from ibpwf.views import Identity, Shape, Views, views_of

T = TypeVar("T")

MOST_HELD_OUT, MOST_TO_STOP_BY = 500, 2_000
"""Rows of a task: three numbers and a few quantiles are made of them, and with early stopping it is decided by them
when to stop, for which more are better."""

ELBO, FINETUNE = "elbo", "finetune"

DISTILLATION = 0.25
"""How much a new version of a task minds answering otherwise than the old one, beside answering rightly. Of 0, 0.25,
0.5 and 1 this kept most of what the old rows had taught (docs/python.md has what it does)."""

SELECTION_ROWS, SELECTION_BATCH = 500, 250
"""Rows by which it is decided whether the selected factors suffice, and how many of them are answered at once."""

PATIENCE = 500
"""Steps without gain after which training ends, in no fewer than 3 and no more than 15 epochs."""


@dataclass(frozen=True)
class Parts:
    """What a user may put in the place of ours: how an optimizer is made from parameters. None stands for what the
    settings say."""

    optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None

    def names(self) -> list[str]:
        """Of those that were given."""
        return [name for name, part in vars(self).items() if part is not None]


def base_digest(weights: Mapping[str, Tensor]) -> str:
    """Of weights by their parameters' names."""
    return digest_of([], {"base": weights})


def _stored_packing(packing: Packing) -> dict[str, Any]:
    return {"fields": [asdict(field) for field in packing.fields], "padding": packing.padding}


class IBPWF(Method):
    """The method on a factorized model."""

    name: ClassVar[str] = "ibpwf"
    summary: ClassVar[str] = "each task selects rank-1 weight factors from a shared, growing dictionary"
    serves_both: ClassVar[bool] = True
    stores: ClassVar[str] = "locked factors, each task's scores, feature means and covariances"
    resumable: ClassVar[bool] = True
    locks: ClassVar[bool] = True
    has_versions: ClassVar[bool] = True
    settings: Settings

    def __init__(self, model: FactorModel, settings: Settings, parts: Parts | None = None) -> None:
        self.model, self.parts = model, parts or Parts()
        self.sets_rate = self.parts.optimizer is None  # one of the user's own has its own rate
        # Nobody knows whether a stranger's step can be recorded.
        self.capturable = self.parts.optimizer is None and settings.likelihood.capturable
        given = self.parts
        self.inference: TaskInference = settings.inference.fork()
        self.features: Features = settings.inference.features.bound(Context(model, settings.input))
        depends_on_default(settings.inference, settings.inference.features, given.optimizer, settings.likelihood)
        self._take(settings)
        self.versions = Versions()
        self.missing_parts: tuple[str, ...] = ()  # of the user's own, not given again since the model was loaded
        self._base_digest: str | None = None
        self.network: TaskNetwork | None = None
        self._held_out: tuple[Rows, Rows] | None = None  # while a task is learned: what it learns from, and the rest
        self._old_version: nn.Module | None = None  # while a new one is learned
        self._data: TaskData | None = None  # while a task is learned
        self._phase = ELBO
        self._views: Views = Identity()
        self._examples = 1

    def _take(self, settings: Settings) -> None:
        needing = {"inference": self.inference.needs_classes, "turns": settings.turns > 1}
        for name, needs_classes in needing.items():
            if needs_classes and not settings.likelihood.has_classes:
                value = settings.inference.kind_name() if name == "inference" else settings.turns
                raise InputError(
                    f"{name} is {value}, which needs class labels, and the targets of "
                    f"{type(settings.likelihood).__name__} are none; "
                    + ("set inference='gaussian'." if name == "inference" else "set turns=1.")
                )
        built, prior = self.model.prior, settings.full_prior
        shared = {name: getattr(built, name) for name in built.fixed}
        if type(prior) is not type(built):
            raise InputError(f"prior is {prior.kind_name()}, but the network was factorized for {built.kind_name()}.")
        self.model.prior = prior.replace(**shared)
        self.likelihood = settings.likelihood
        self.inference = self.inference.adjusted(settings.inference)
        self.settings = settings
        self.accelerate = settings.accelerate
        self.tf32, self.bfloat16 = settings.precision != "float32", settings.precision == "bfloat16"

    def join(self, group: Group) -> None:
        """Learn together with other processes from now on."""
        self.group = group
        self.inference.join(group)

    def with_settings(self, settings: Settings) -> Self:
        """The same method with other settings from the next task on; those it was built with must be the same."""
        found = settings.fixed_difference(self.settings)
        if found is not None:
            name, wanted, built = found
            raise InputError(
                f"{name} is {wanted!r}, but this was built with {built!r}, which every task reads; keep it, or "
                "begin a new learner."
            )
        other = self.fork()
        other._take(settings)
        return other

    def check_complete(self) -> None:
        if self.missing_parts:
            given = ", ".join(f"{name}=..." for name in self.missing_parts)
            raise InputError(
                f"this learner was taught with your own {' and '.join(self.missing_parts)}, which a folder cannot "
                f"hold; pass the same again to learn on: Learner.load(path, {given})."
            )

    @property
    def template(self) -> nn.Module:
        return self.model.net

    @property
    def factor_model(self) -> FactorModel:
        return self.model

    @property
    def has_frozen_base(self) -> bool:  # type: ignore[override]
        return self.model.base == "frozen"

    def find_packing(self, x: object, before: Packing | None) -> Packing | None:
        net = self.model.net
        if not isinstance(x, Mapping) and not names_inputs(net):
            return None
        named = named_tensors(x if isinstance(x, Mapping) else {net.main_input_name: x})
        return find_packing(net, named, self.settings.length, before)

    def take_packing(self, packing: Packing) -> None:
        self.model.take_packing(packing)

    def check_input_shape(self, shape: tuple[int, ...]) -> None:
        method_state.check_inputs(self, shape)

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
        before = self.model.tasks[self.place(data.index)] if data.is_update else None
        turns = s.turns if before is None else before.turns
        self._views = views_of(turns).of_images(self.image_shape)
        self._views.check(next(data.rows.in_order(1))[0])
        outputs = turns * self.likelihood.outputs(data.classes, next(data.rows.in_order(1))[1])
        network = self.model.start_task(outputs, data.generator("init"), before)
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
        if self.likelihood.is_constant(outputs):
            return []  # there is nothing to tell apart: the answer is that class
        elbo = self._phase_of(ELBO, plan.epochs, plan.batch_size, plan.learning_rate)
        finetune = self._phase_of(FINETUNE, plan.finetune_epochs, plan.batch_size, plan.learning_rate)
        if self._is_stopped:
            steps = max(rows // plan.batch_size, 1)
            patience = min(max(math.ceil(PATIENCE / steps), 3), 15)
            elbo = replace(elbo, patience=patience, schedule="constant")
            finetune = replace(finetune, patience=max(finetune.epochs // 2, 3), schedule="cosine")
        if not self.model.prior.has_kl:
            network.fix_selection()
            return [replace(finetune, epochs=plan.epochs + plan.finetune_epochs)]
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
        return self.likelihood.validation_loss(torch.cat(parts), held.tensors()[1], held.weights)

    @property
    def least_classes(self) -> int:
        """One: task inference tells it from the classes of other tasks."""
        return 1 if self.likelihood.has_classes else 0

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
        if network.selected or self.likelihood.is_constant(classes) or s.selection_loss == 100:
            network.fix_selection()
            return
        x, y = self._rows_to_select_by()
        pieces = list(zip(*(one.tensor_split(math.ceil(len(y) / SELECTION_BATCH)) for one in (x, y)), strict=True))

        def accuracy(selection: Mapping[str, Tensor] | None) -> float:
            right = [
                self.likelihood.right(network.answers_with(some, selection)[:, :classes], known)
                for some, known in pieces
            ]
            found = [one for one in right if one is not None]
            return 100 * float(torch.cat(found).double().mean()) if found else 0.0

        chosen = sufficient_selection(network, accuracy, s.selection_loss)
        for name, mask in chosen.items():
            agreed = mask.to(torch.uint8)
            self.group.take_from_first([agreed])
            chosen[name] = agreed.bool()
        network.fix_selection(chosen)

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
        return [*network.posterior.buffers(), *own]

    def trained_networks(self) -> Sequence[nn.Module]:
        return (self._training,)

    def loss(self, x: Tensor, y: Tensor) -> Loss:
        """The negative ELBO (eq. ELBO); once the selection is fixed, the fit alone."""
        network, turns = self._training, self._training.turns
        classes = network.outputs // turns
        kl = None if self._phase == FINETUNE else network.kl()
        given = self._views.train(x)
        logits = network(given)
        fit = self.likelihood.loss(logits, self._views.labels(y, classes))
        if self._old_version is not None:
            fit = fit + DISTILLATION * self.likelihood.divergence(
                logits, self._old_version(given)[:, : network.outputs]
            )
        right = self.likelihood.right(logits[: len(y), :classes], y)
        accuracy = None if right is None else right.float().mean()
        if kl is None:
            return Loss(fit, accuracy=accuracy)
        return Loss(negative_elbo(fit, kl, self._examples), kl, accuracy)

    def after_backward(self) -> None:
        self._training.release()

    def after_step(self) -> None:
        if self._phase == ELBO:
            self._training.posterior.after_step()

    def after_epoch(self, phase: Phase, epoch: int) -> bool:
        """Grow while there is still an epoch left to train what was added."""
        if phase.name != ELBO or epoch + 1 >= phase.epochs:
            return False
        return self._training.grow() > 0

    def counts(self) -> Counts:
        network = self._training
        if network.selected:
            layers = network.factor_layers
            new = sum(len(layer.free_at) for layer in layers.values())
            return Counts(sum(len(layer.locked_at) for layer in layers.values()) + new, new)
        table = network.active().values()
        return Counts(sum(active for active, _ in table), sum(new for _, new in table))

    def training_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return in_progress.kept(self._training)

    def load_training_state(self, content: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        in_progress.restore(self._training, content, tensors)

    def end_task(self, data: TaskData) -> None:
        network, rows = self._training, self.rows_to_train(data)
        plan = self._plan(len(rows))
        self.trains_what_it_keeps = bool(plan.finetune_epochs) or not self.model.prior.has_kl
        if not plan.finetune_epochs:
            self._fix_selection()
        self.further_factors = further_factors(network)
        batches = rows.epoch(max(plan.batch_size, 2), data.generator("statistics"))  # one row has no variance
        estimate_statistics(network, ((self._views.train(x), y) for x, y in batches))
        self.model.finish_task(network)
        self.keep(data, rows)
        self.network = self._old_version = self._data = None

    def learn_adapter(self, path: str | Path, data: TaskData, classes: Sequence[int] | None) -> None:
        self.likelihood.require_classes("learn_adapter", "train the task with learn")
        adapter = read_adapter(path)
        adapter_classes(adapter, self.model, classes, data.classes)
        ready = as_task(adapter, self.model, len(data.classes))
        self.hold_out(data)
        add_ready_task(self.model, len(data.classes), ready.factors, ready.own)
        self.keep(data, self.rows_to_train(data))

    def fork(self) -> Self:
        other = copy.copy(self)
        other.model = self.model.fork()
        other.features, other.inference = self.features.fork(other.model), self.inference.fork()
        return other

    # What is kept of a task

    def hold_out(self, data: TaskData) -> None:
        share, apart = self.settings.validation_fraction, data.generator("held out")
        most = MOST_TO_STOP_BY if self.settings.early_stopping else MOST_HELD_OUT
        self.outcome = None
        self._held_out = data.rows.split(share, most, apart) if share else None

    def keep(self, data: TaskData, rows: Rows) -> None:
        """What is kept of a task that the model has by now: what its inputs are like, and how sure it may be."""
        # A router is weighed by the held-out rows, which it must not have seen; Gaussians are not.
        seen = rows if self.inference.has_class_scores else data.rows
        if data.is_update:
            self.add_rows(data.index, seen)
            old = self.versions[data.index]
            new = replace(old, serial=data.serial, number=old.number + 1)
        else:
            if data.index == 0:
                self._fit_features(data, seen)
            self.inference.learn(data.index, self._phi(seen), len(data.classes))
            serial = max(data.serial, self.next_serial(data.index))  # no two tasks have the same
            new = Version(serial, data.classes, serial)
        self.versions = self.versions.added(replace(new, opinion=self._opinion(data.index)))
        if self._held_out is not None and (not data.is_update or new.calibration is not None):
            self.versions = self.versions.calibrated(self._calibrated(data.index, self._held_out, new.calibration))
            self._as_if_not_asked()
        elif self.inference.keeps_opinions:
            self._as_if_not_asked()
        self._held_out = None

    def _fit_features(self, data: TaskData, rows: Rows) -> None:
        """Those that look at some rows alone take them from all over."""
        for part in self.features.parts_to_fit():
            part.fit(Again(partial(self._seen_by, part, data, rows)), len(rows), data.generator("random features"))

    @staticmethod
    def _seen_by(features: Features, data: TaskData, rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        some = features.rows_to_fit
        return rows.in_order() if some is None else rows.sample(some, data.generator("sample"))

    def add_rows(self, task: int, rows: Rows) -> None:
        """Let task inference have more rows of a task, as if they had come with its first; its expert stays."""
        self.inference.update(task, self._phi(rows), len(self.classes[task]))

    def _phi(self, rows: Rows) -> Iterator[tuple[Tensor, Tensor]]:
        batches = rows.in_order()
        batches = self.group.shares(batches) if self.inference.adds_up else batches
        return ((phi, y) for x, y in batches for phi in self.features.views(x))

    def _opinion(self, task: int) -> Opinion | None:
        return self.inference.opinion(task) if self.inference.keeps_opinions else None

    def _as_if_not_asked(self) -> None:
        """Let a router on a CPU solve again: training has other threads than answering, so other bits."""
        if self.device.type == "cpu":
            self.inference = self.inference.fork()

    def _calibrated(self, task: int, apart: tuple[Rows, Rows], old: Calibration | None) -> Calibration:
        """What the held-out rows of a task say of it, the second of the rows that were set `apart`, with all that is
        learned by now; of a new version, beside what those of the `old` one said."""
        train, rows = apart
        x, y = rows.tensors()
        own = self.logits(x, task)
        if not self.likelihood.has_classes:
            self.outcome = self.likelihood.compared(train, rows, own) if len(y) >= FEWEST_ROWS else None
            return Calibration(self.likelihood.temperature(own, y))
        scores = self.class_scores(x, "all", distances=True) if self.inference.has_class_scores else None
        kept = self.versions[task].opinion
        opinion = None if kept is None else kept.scores(self.phi(x))
        if old is None:
            found = fusion.calibrate(scores, own, y, self.calibrations, opinion)
        else:
            found = fusion.recalibrated(old, scores, own, y, task, opinion)
        if opinion is not None and found.opinion is not None:
            expert, regression = found.opinion
            own = expert * own.double() + regression * opinion
        self.outcome = self.likelihood.compared(train, rows, own) if len(y) >= FEWEST_ROWS else None
        return found

    # Answering

    @property
    def classes(self) -> list[tuple[int, ...]]:  # type: ignore[override]
        """Of every task."""
        return [one.classes for one in self.versions.newest]

    @property
    def calibrations(self) -> list[Calibration | None]:
        """Of every task's newest version."""
        return self.versions.calibrations

    def by_number(self, learned: Sequence[T]) -> Sequence[T]:
        if len(learned) != len(self.versions.all):
            raise CorruptModelError(
                f"{len(learned)} tasks are named, and the method's state has {len(self.versions.all)}"
            )
        return [learned[place] for place in self.versions.places]

    def version(self, task: int) -> tuple[int, int]:
        return self.versions.owners[task], self.versions[task].number

    def width(self, task: int) -> int:
        """How many scores a task, or older version, gives for a row."""
        return self.model.tasks[self.place(task)].classes

    def place(self, task: int) -> int:
        """Where the model has the task, or older version, of this number."""
        return self.versions.places[task]

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def image_shape(self) -> Shape:
        """Of images that come as flat rows."""
        return self.settings.input.flat_shape

    def logits(self, x: Tensor, task: int) -> Tensor:
        views, place = self.views(task), self.place(task)
        parts = list[Tensor]()
        for rows in torch.split(x, ROWS_PER_PASS):
            parts.append(self.model.logits(rows, place, views))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def merge(self, task: int) -> nn.Module:
        return self.model.merge(self.place(task))

    def expert(self, x: Tensor, task: int) -> Tensor | None:
        """A task's class scores beside those of others; None of a task that had nothing to tell apart."""
        return None if self.is_silent(task) else self.logits(x, task)

    def is_silent(self, task: int) -> bool:
        """Whether a task has one class, and no turns to learn it by."""
        return len(self.classes[task]) == 1 and self.model.tasks[self.place(task)].turns == 1

    def views(self, task: int) -> Views:
        """How images are looked at to answer for a task."""
        turns = self.model.tasks[self.place(task)].turns
        if self.settings.views == "plain" or turns == 1:
            return views_of(1)
        return views_of(turns, mirror=self.settings.mirror).of_images(self.image_shape)

    def class_scores(self, x: Tensor, experts: fusion.Experts, *, distances: bool = False) -> fusion.Scores:
        """What router and experts say of every class of every task (see `inference.fusion`), and how far rows lie
        from each, where that is asked for and known."""
        widths = tuple(len(labels) for labels in self.classes)
        parts: list[fusion.Scores] = []
        apart: list[Tensor] = []
        for rows in torch.split(x, ROWS_PER_PASS):
            phi = self.features(rows)
            parts.append(fusion.look(self.inference.class_log_scores(phi), rows, widths, self.expert, experts))
            if distances and self.inference.has_distances:
                apart.append(self.inference.distances(phi))
        own = [part.experts for part in parts if part.experts is not None]
        return fusion.Scores(
            torch.cat([part.router for part in parts]),
            torch.cat(own) if own else None,
            widths,
            self.inference.class_levels(),
            torch.cat(apart) if apart else None,
            parts[0].silent,
        )

    def class_log_scores(self, x: Tensor) -> Tensor | None:
        """log P(t, c | x) up to a constant, N×ΣC, where task inference looks at every class (see `inference.fusion`);
        None where it tells tasks alone."""
        if not self.inference.has_class_scores:
            return None
        return self.class_scores(x, self._experts_asked()).joint(*self.fusion_weights())

    def fusion_weights(self) -> tuple[float, float]:
        """α of the router and β of the experts: what held-out rows say, or the user's β beside a router of 1."""
        weight = self.inference.weight_of_experts
        alone = not self.inference.experts_asked or not weight
        if weight != "auto" and not alone:
            return fusion.ROUTER_WEIGHT, weight
        return fusion.weights(self.calibrations, alone=True) if alone else self.versions.weights

    @property
    def has_novelty(self) -> bool:
        return self.inference.has_class_scores and None not in self.calibrations

    def novelty(self, x: Tensor, rate: float) -> Tensor:
        """How unlike everything learned each row is, by router and experts; above 1 for a share `rate` of the rows of
        the tasks themselves."""
        check_rate(rate)
        if not self.inference.has_class_scores:
            raise InputError(
                f"inference is {self.settings.inference.kind_name()}, which does not look at every class; learn with "
                "inference='router' and validation_fraction above 0 to detect novel inputs, or with a "
                "ContinualClassifier."
            )
        scores = self.class_scores(x, self._novel_by(), distances=True)
        return fusion.novelty(scores, self.calibrations, rate)

    def task_probabilities(self, x: Tensor) -> Tensor:
        """P(t | φ(x)) for every row and task (eq. phi_task_inference)."""
        joint = self.class_log_scores(x)
        if joint is not None:
            return by_task(joint, [len(labels) for labels in self.classes])
        with accelerated(self.accelerate):
            return infer_tasks(self.inference, self.features, x)

    def predict_with_novelty(
        self, x: Tensor, task: Tensor | None, rate: float, *, marginal: bool, posterior_samples: int, seed: int
    ) -> Prediction:
        experts = self._experts_asked()
        if (
            task is not None
            or posterior_samples
            or not self.inference.has_class_scores
            or experts != self._novel_by()
        ):
            how: dict[str, Any] = {"marginal": marginal, "posterior_samples": posterior_samples, "seed": seed}
            return super().predict_with_novelty(x, task, rate, **how)
        check_rate(rate)
        scores = self.class_scores(x, experts, distances=True)
        found = self._joint_prediction(scores.joint(*self.fusion_weights()), marginal)
        return found.with_novelty(fusion.novelty(scores, self.calibrations, rate))

    def _experts_asked(self) -> fusion.Experts:
        """Whose experts join the router in a prediction."""
        return self.inference.experts_asked if self.fusion_weights()[1] else 0

    def _novel_by(self) -> fusion.Experts:
        """Whose experts tell novelty."""
        return self.inference.experts_asked or "likely"

    def class_columns(self) -> tuple[tuple[int, int], ...]:
        return tuple((task, label) for task, labels in enumerate(self.classes) for label in labels)

    def predict(
        self, x: Tensor, task: Tensor | None, *, marginal: bool, posterior_samples: int, seed: int
    ) -> Prediction:
        """A row's answer given its task, or with `marginal` mixed over tasks: p(c|x) = Σ_t ρ_t,c P(t|φ(x)) and its
        entropy (eqs. predictive_marginal, entropy_incr_class)."""
        for name, asked in (("posterior_samples", posterior_samples), ("marginal", marginal)):
            if asked:
                self.likelihood.require_classes(name, "leave it out")
        if task is None and not posterior_samples and self.inference.has_class_scores:
            scores = self.class_scores(x, self._experts_asked())
            return self._joint_prediction(scores.joint(*self.fusion_weights()), marginal)
        inferred = self.task_probabilities(x) if task is None else None
        if task is None:
            assert inferred is not None
            task = inferred.argmax(1)
            if marginal:
                return self._mixed_prediction(x, task, inferred, posterior_samples, seed)
        of = RowTasks.of(task)
        owners = of.called(self.versions.owners)
        if posterior_samples:
            own, total, single = self._sampled_by_task(x, of, posterior_samples, seed)
            information = (total - single).clamp(min=0)
            return OwnTaskPrediction(own, self.versions.newest, owners, total, information, inferred)
        widths = [self.width(t) for t in of.numbers]
        own_scores = self._scores_of_rows(x, of, widths)
        return self.likelihood.predict(RowScores(own_scores, of, widths, self.versions.newest, owners, inferred))

    def _sampled_by_task(
        self, x: Tensor, of: RowTasks, posterior_samples: int, seed: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """p(y|x,t) of every row over posterior samples of its task's network, N×C, its entropy, and the mean entropy
        of one sample."""
        if len(of.numbers) == 1:
            p, spread = self.class_probabilities(x, of.numbers[0], posterior_samples, seed)
            return p, entropy(p), spread
        own = torch.zeros(len(x), max(map(self.width, of.numbers), default=0), dtype=torch.float64, device=x.device)
        total, single = own.new_zeros(len(x)), own.new_zeros(len(x))
        for place, rows in rows_by_value(of.place):
            p, single[rows] = self.class_probabilities(x[rows], of.numbers[place], posterior_samples, seed)
            own[rows, : p.shape[1]], total[rows] = p, entropy(p)
        return own, total, single

    def _scores_of_rows(self, x: Tensor, of: RowTasks, widths: Sequence[int]) -> Tensor:
        """Calibrated scores of every row under its own task, N×C: in one pass where that can be had and is worth it,
        else each through the network of its task."""
        together = self._logits_of_all(x, of)
        if together is None and len(of.numbers) == 1:
            return self._calibrated_scores(x, of.numbers[0])
        if together is None:
            scores = torch.zeros(len(x), max(widths, default=0), dtype=torch.float64, device=x.device)
            for place, rows in rows_by_value(of.place):
                scores[rows, : widths[place]] = self._calibrated_scores(x[rows], of.numbers[place])
            return scores
        phi = self._phi_of(x, of.numbers)
        scores = together.double()
        temperatures = [self.temperature(t) for t in of.numbers]
        if phi is None and set(temperatures) != {1.0}:
            scores /= _of_rows(temperatures, of, x)
        if phi is not None:
            for place, rows in rows_by_value(of.place):
                own = scores[rows, : widths[place]]
                scores[rows, : widths[place]] = self._given(own, of.numbers[place], phi[rows])
        return scores

    def _mixed_prediction(
        self, x: Tensor, task: Tensor, likely: Tensor, posterior_samples: int, seed: int
    ) -> Prediction:
        """All tasks' answers by how likely each task is; those that are likely for no row are not asked."""
        columns, widths = self.class_columns(), [len(labels) for labels in self.classes]
        first = [0, *accumulate(widths)]
        given = torch.zeros(len(x), len(columns), dtype=torch.float64, device=x.device)
        single = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for t in likely.any(0).nonzero().flatten().tolist():
            here = slice(first[t], first[t + 1])
            if posterior_samples:
                given[:, here], spread = self.class_probabilities(x, t, posterior_samples, seed)
                single += likely[:, t] * spread
            else:
                given[:, here] = self._given_task(x, t)
        owner, label = torch.tensor(columns, device=x.device).unbind(1)
        # The label is the inferred task's own best class (the paper's rule), also here.
        best = given.masked_fill(owner != task.unsqueeze(1), -1).argmax(1)
        probabilities = given * likely[:, owner]
        total = entropy(probabilities)
        return Prediction(
            labels=label[best],
            probabilities=probabilities,
            classes=columns,
            task=task,
            task_probabilities=likely,
            entropy=total,
            mutual_information=(total - single).clamp(min=0) if posterior_samples else None,
        )

    def _logits_of_all(self, x: Tensor, of: RowTasks) -> Tensor | None:
        """Class scores of rows of several tasks in one pass, where that can be had and is worth it."""
        if self.model.base != "frozen" or len(of.numbers) < 2:
            return None
        asked = of.called(self.versions.places).split(ROWS_PER_PASS)
        found = []
        for rows, tasks in zip(torch.split(x, ROWS_PER_PASS), asked, strict=True):
            part = self.model.mixed_logits(rows, tasks, if_cheaper=True)
            if part is None:
                return None
            found.append(part)
        if len(found) == 1:
            return found[0]
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

    def class_probabilities(
        self, x: Tensor, task: int, posterior_samples: int = 0, seed: int = 0
    ) -> tuple[Tensor, Tensor]:
        """p(y|x,t) and the mean entropy of one draw; with no draws, the locked selection is the only model."""
        if posterior_samples:
            check_posterior_samples(
                posterior_samples, sum(one.inputs * one.outputs for one in self.model.layers.values())
            )
            serial, place = self.versions[task].serial, self.place(task)
            generator = torch.Generator(self.device).manual_seed((seed * 1_000_003 + serial) % (1 << 63))
            stacked = self.model.sampled_states(place, posterior_samples, generator)
            classes, views = self.model.tasks[place].classes, self.views(task)
            kept = self.versions[task].opinion
            divisor, beside = self.temperature(task), None
            if kept is not None:
                expert, regression = self._weights_given(task)
                divisor, beside = 1 / expert, regression * kept.scores(self.phi(x))
            with self.model.shell() as net:
                return sampled_probabilities(
                    net,
                    stacked,
                    x,
                    logits=lambda of, rows: views.scores(of, rows, classes) / divisor,
                    beside=beside,
                )
        p = self._given_task(x, task)
        return p, entropy(p)

    def _given_task(self, x: Tensor, task: int) -> Tensor:
        """p(y|x,t) from the locked selection."""
        return self._calibrated_scores(x, task).softmax(1)

    def _calibrated_scores(self, x: Tensor, task: int) -> Tensor:
        return self._given(self.logits(x, task), task, self._phi_of(x, [task]))

    def phi(self, x: Tensor) -> Tensor:
        """φ of all rows."""
        return torch.cat([self.features(rows) for rows in torch.split(x, ROWS_PER_PASS)])

    def _phi_of(self, x: Tensor, tasks: Sequence[int]) -> Tensor | None:
        """φ where one of the tasks has an opinion."""
        return self.phi(x) if any(self.versions[task].opinion is not None for task in tasks) else None

    def _given(self, own: Tensor, task: int, phi: Tensor | None) -> Tensor:
        """log P(c | x, t) up to a constant, from a task's own class scores and what it keeps of the router's."""
        opinion = self.versions[task].opinion
        if opinion is None or phi is None:
            return own.double() / self.temperature(task)
        expert, regression = self._weights_given(task)
        return expert * own.double() + regression * opinion.scores(phi)

    def _weights_given(self, task: int) -> tuple[float, float]:
        """Of a task's own class scores, and of its opinion: what its held-out rows say."""
        calibration = self.versions[task].calibration
        return (EXPERT, REGRESSION) if calibration is None or calibration.opinion is None else calibration.opinion

    def temperature(self, task: int) -> float:
        """What a task's class scores are divided by: 1, or what its held-out rows say."""
        calibration = self.versions[task].calibration
        return 1.0 if calibration is None else calibration.temperature

    # Forgetting

    def serial(self, task: int) -> int:
        return self.versions[task].serial

    def next_serial(self, tasks: int) -> int:
        return self.versions.all[-1].serial + 1 if self.versions.all else 0

    def forget(self, task: int) -> Forgotten:
        """Remove a task with all its versions, or an older version, of which task inference knows nothing. The next
        task's prior is the posterior of what was learned last of all that remains."""
        if not self.model.prior.can_forget:
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
        model = self.model
        return {
            "settings": self.settings.to_json(),
            "network": describe(model.net),
            "signature": signature(model.net),
            "head": model.head,
            "layers": list(model.layers),
            "frozen": sorted(model.frozen),
            "parts": sorted({*self.parts.names(), *self.missing_parts}),
            "base": self._digest_of_base(),
            "packing": None if model.packing is None else _stored_packing(model.packing),
        }

    def _digest_of_base(self) -> str | None:
        """Of the frozen weights that every task stands on; they never change."""
        if self._base_digest is None and self.has_frozen_base:
            self._base_digest = base_digest(self.model.base_weights())
        return self._base_digest

    def fixed_files(self) -> dict[str, dict[str, Tensor]]:
        elsewhere = self.model.base_weights()
        kept = {name: tensor for name, tensor in self.model.net.state_dict().items() if name not in elsewhere}
        return {"template": kept}

    @classmethod
    def create(cls, configuration: Mapping[str, Any], device: str | torch.device = "cpu") -> Self:
        settings = Settings.from_json(configuration["settings"])
        return cls(factorize(build(configuration["network"]), **settings.factorization).to(device), settings)

    def state(self) -> tuple[dict[str, Any], Mapping[str, Mapping[str, Tensor]]]:
        return method_state.state_of(self)

    def load_state(self, content: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        method_state.take_state(self, content, files)


def _of_rows(values: Sequence[float], of: RowTasks, x: Tensor) -> Tensor:
    """Each row's own of values that tasks have, N×1, where x is."""
    return torch.tensor(values, dtype=torch.float64)[of.place].to(x.device).unsqueeze(1)
