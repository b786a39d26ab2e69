"""The learner of IBP-WF, and model folders of any method read and held."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ibpwf import __version__
from ibpwf.adapters import adapter_classes, as_task, read_adapter
from ibpwf.concurrency import finish
from ibpwf.data.rows import Batches, IndexedRows
from ibpwf.device import choose_device
from ibpwf.distributed import Distributed, join
from ibpwf.errors import InputError, StoreError
from ibpwf.factors.compiled import uncompiled
from ibpwf.factors.factorize import factorize
from ibpwf.factors.model import FactorModel
from ibpwf.factors.packing import Field, Packing, find_packing, names_inputs
from ibpwf.factors.weights import load_tensors
from ibpwf.inference.base import Features, TaskInference
from ibpwf.inputs import named_tensors
from ibpwf.learner_state import Data, Learned, TaskInfo
from ibpwf.method import IBPWF, Parts
from ibpwf.method_state import check_inputs
from ibpwf.parts import part_fields
from ibpwf.settings import FAST, Factorization, Settings
from ibpwf.storage.checkpoint_folder import digest_of, discard_finished
from ibpwf.storage.folder import MANIFEST, OpenedFolder, lock_folder, open_folder
from ibpwf.storage.model_folder import KIND, face_of, whole_folder
from ibpwf.storage.model_record import Configuration, StoredPacking, manifest_of, read_content
from ibpwf.storage.network_json import NeedsParts, build, check_same, describe, signature
from ibpwf.storage.on_demand import parts_of
from ibpwf.storage.records import read_record
from ibpwf.storage.tensor_checks import (
    BOUNDED,
    NOT_NAN,
    CorruptModelError,
    Expected,
    at_most,
    check_numbers,
    check_part,
)
from ibpwf.task_learner import TaskLearner
from ibpwf.torch_state import pinned, pinned_steps
from ibpwf.training.callbacks import Callback
from ibpwf.training.fitting import check_fits
from ibpwf.training.method import Method, TaskData
from ibpwf.update import VALIDATION_FRACTION, Keep, Trial, Update, class_numbers, known_task, try_version

if TYPE_CHECKING:
    from ibpwf.estimator import ContinualClassifier

__all__ = ["KIND", "Learner", "TaskInfo", "TaskLearner", "choose_device", "load", "open_model"]


class Learner(TaskLearner):
    """Learns task after task, forgets nothing, and infers the task of an input by itself.

    Given a plain network, it is factorized with the settings' `alpha`, `max_factors`, `heads`, `strength_std` and
    `init`; what `factorize` gives has its own, and settings that say otherwise are refused. `features`, `inference`
    and `optimizer` take the place of what the settings name (docs/extending.md): a `Features`, a `TaskInference`, a
    function that makes an optimizer of parameters. The same seed
    on the same machine gives the same bits, whether or not the learner was stored and loaded between tasks.
    """

    @pinned()
    def __init__(
        self,
        model: FactorModel | nn.Module,
        settings: Settings | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "auto",
        features: Features | None = None,
        inference: TaskInference | None = None,
        optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer] | None = None,
        distributed: Distributed = "off",
    ) -> None:
        settings = settings or Settings()
        if not isinstance(model, nn.Module):
            raise InputError(
                f"model is a {type(model).__name__}; give a torch.nn.Module or the result of ibpwf.factorize."
            )
        if isinstance(model, FactorModel):
            _check_factorization(model, settings)
        else:
            model = factorize(model, **settings.factorization)
        if model.tasks:
            raise InputError("this factorized model already belongs to a learner; factorize the network again.")
        prior = {name: getattr(model.prior, name) for name in model.prior.fixed & {*Settings.model_fields}}
        settings = settings.replace(
            **prior,
            heads=model.heads,
            init=model.init,
            base=model.base,
            length=model.options["length"],
        )
        parts = Parts(features, inference, optimizer)
        self._needs: list[str] = []  # parts of its own that a loaded learner was taught with and has not been given
        self._base_digest: str | None = None
        group = join(distributed, str(device))
        super().__init__(IBPWF(model.to(choose_device(device)), settings, parts), seed=seed)
        self.method.join(group)
        group.take_from_first(self.model.net.state_dict().values())  # which each may have drawn for itself

    @property
    def method(self) -> IBPWF:
        found = super().method
        assert isinstance(found, IBPWF)
        return found

    @property
    def model(self) -> FactorModel:
        """The network with every task so far. It never changes: the next task makes another, as does the one that was
        handed in."""
        return self.method.model

    @property
    def settings(self) -> Settings:
        """What the next task is learned with: `learner.settings = learner.settings.replace(epochs=20)`."""
        return self.method.settings

    @settings.setter
    def settings(self, settings: Settings) -> None:
        self._check_owner("changed")
        self._writer.run("changed", lambda: self._take_settings(settings))

    @pinned()
    def _take_settings(self, settings: Settings) -> None:
        known = self._learned
        self._learned = replace(known, method=self.method.with_settings(settings))

    def learn_steps(self, *arguments: Any, **options: Any) -> Generator[None, None, Learned]:
        self._check_parts()
        return super().learn_steps(*arguments, **options)

    def _check_parts(self) -> None:
        if self._needs:
            given = ", ".join(f"{name}=..." for name in self._needs)
            raise InputError(
                f"this learner was taught with your own {' and '.join(self._needs)}, which a folder cannot hold; "
                f"pass the same again to learn on: Learner.load(path, {given})."
            )

    def update(
        self,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None = None,
        *,
        task: int | str,
        keep: Keep = "better",
        validation_fraction: float = VALIDATION_FRACTION,
        callbacks: Sequence[Callback] = (),
    ) -> Update:
        """Learn more rows of a task that is known, `x` and `y` as for `learn`; some of its classes may have none.

        Task inference takes them as if they had come with the task's first rows. The task's expert is trained on as
        a new version, which `task="name"` and task inference use from then on. The old one stays as it is, to the
        bit: `task="name@1"` asks for it, `forget("name@1")` drops it.

        A share `validation_fraction` of the rows is not learned from. The new version is kept if their answers are
        right at least as often as before, with the task given and inferred (keep="better"), in any case ("always"),
        or not at all ("never"): the result says what would change. Validation rows then go to task inference as well.
        A version that is kept and answers clearly worse than the one before, or than a linear model, is a warning.
        Everything is read into memory. If anything goes wrong, or is interrupted, the learner is as before.
        """
        self._check_owner("learned")
        steps = pinned_steps(self._update_steps(x, y, task, keep, validation_fraction, callbacks))
        self._writer.claim(steps, "learned")
        result, doubt = finish(steps)
        if doubt is not None:
            warnings.warn(doubt, stacklevel=2)
        return result

    def _update_steps(
        self,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None,
        task: int | str,
        keep: Keep,
        validation_fraction: float,
        callbacks: Sequence[Callback],
    ) -> Generator[None, None, tuple[Update, str | None]]:
        """The result, and what to warn of."""
        known = self._learned
        trial = yield from self.try_update(x, y, task, keep, validation_fraction, callbacks)
        seen = trial.labels, trial.answers(known), trial.answers(trial.learned)
        result = trial.judged(*seen)
        if not result.kept:
            return result, None
        doubt = trial.doubt(*seen)
        self._learned = trial.finished()
        return result, doubt

    def try_update(
        self,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None,
        task: int | str,
        keep: Keep,
        validation_fraction: float,
        callbacks: Sequence[Callback] = (),
    ) -> Generator[None, None, Trial]:
        """Train a new version of a task, pausing after every step; what has come of it is not the learner's yet."""
        self._check_parts()
        known = self._learned
        info = known_task(known, task)
        rows, found, _ = self._rows(x, y)
        numbers = class_numbers(found, info)
        inputs, labels = rows.tensors()
        rows = IndexedRows(inputs, torch.tensor(numbers, device=labels.device)[labels])
        return (
            yield from try_version(known, info, rows, keep, validation_fraction, self.seed, self._identity, callbacks)
        )

    @property
    def known(self) -> Learned:
        return self._learned

    def commit(self, learned: Learned) -> None:
        """Commit a trial that the caller has judged."""
        self._check_owner("changed")
        self._writer.run("changed", lambda: setattr(self, "_learned", learned))

    def learn_adapter(
        self,
        path: str | Path,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None = None,
        task: str | None = None,
        *,
        classes: Sequence[int] | None = None,
    ) -> TaskInfo:
        """Make a LoRA adapter that peft has saved in a folder a task like any other, trained no further; the model
        must have been factorized with base="frozen", on the adapter's own base.

        `x` and `y`, as for `learn`, are examples of it: they tell what its inputs are like, for task inference, and
        `training_accuracy` says how many of them it answers rightly. The labels of y in rising order are the
        adapter's outputs; where it has more outputs than that, `classes` says that these are the first of them.
        """
        self._check_owner("learned")
        self._check_parts()
        return self._writer.run("learned", lambda: self._learn_adapter(path, x, y, task, classes))

    @pinned()
    def _learn_adapter(
        self,
        path: str | Path,
        x: Data | Batches | torch.utils.data.Dataset[Any],
        y: Data | None,
        task: str | None,
        classes: Sequence[int] | None,
    ) -> TaskInfo:
        known, name = self._learned, self._task_name(task)
        adapter = read_adapter(path)
        rows, found, packing = self._rows(x, y)
        counts = rows.class_weights()
        adapter_classes(adapter, self.model, classes, found)
        ready = as_task(adapter, self.model, len(found))
        first = next(rows.in_order(1))[0]
        method = self.method.fork()
        if self.input_shape is None:
            self._take_packing(method, packing)
            check_fits(method, first)
        number = len(known.tasks)
        data = TaskData(name, number, found, seed=self.seed, serial=known.method.next_serial(number), rows=rows)
        method.take_task(data, ready.factors, ready.own)
        answers = ((method.logits(inputs, number).argmax(1), labels) for inputs, labels in rows.in_order())
        right = sum(int((answer == labels).sum()) for answer, labels in answers)
        info = TaskInfo(name, number, found, len(rows), training_accuracy=100 * right / len(rows))
        event = {"event": "learnt", "serial": data.serial, "version": __version__}
        guessing = 100 * float(counts.max().float() / counts.sum())
        now = Learned(method, (), (*known.history, event), tuple(first.shape[1:]), guessing)
        self._learned = now.numbered([*known.tasks, info, *known.older])
        return info

    def _find_packing(self, x: object, before: Packing | None) -> Packing | None:
        net = self.model.net
        if not isinstance(x, Mapping) and not names_inputs(net):
            return None
        named = named_tensors(x if isinstance(x, Mapping) else {net.main_input_name: x})
        return find_packing(net, named, self.settings.length, before)

    def _take_packing(self, method: Method, packing: Packing | None) -> None:
        assert isinstance(method, IBPWF)
        if packing is not None:
            method.model.take_packing(packing)

    @pinned()
    def novelty(self, x: Data, false_alarm_rate: float = 0.01) -> Tensor:
        """How unlike everything learnt each input is, told by router and experts (inference="router", held_out above
        0): above 1, it is less like any task than all but that share of the task's own inputs."""
        known = self._learned
        if not known.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")
        assert isinstance(known.method, IBPWF)
        return known.method.novelty(known.inputs(x), false_alarm_rate)

    def fast(self) -> Learner:
        """A learner that knows the same and answers faster, a little less well: a router asks the experts of likely
        tasks alone, and each looks at an image once, as it is. docs/class-incremental.md says what that costs."""
        other = self.fork()
        other.settings = other.settings.replace(**FAST)
        return other

    @pinned()
    def merge(self, task: int | str) -> nn.Module:
        """One task as an ordinary network of the original class, its outputs in the order of the task's classes.

        Its state dict loads into your own network, unless `heads` is "per-task" and the task has another number of
        classes (see `FactorModel.merge`).
        """
        known = self._learned
        if not known.tasks:
            raise InputError("nothing has been learnt yet; call learn(x, y) first.")
        assert isinstance(known.method, IBPWF)
        return known.method.model.merge(known.method.place(known.task_number(task)))

    def _configuration(self, method: Method) -> tuple[dict[str, Any], dict[str, dict[str, Tensor]]]:
        assert isinstance(method, IBPWF)
        model = method.model
        configuration = {
            "settings": method.settings.to_json(),
            "network": describe(model.net),
            "signature": signature(model.net),
            "head": model.head,
            "layers": list(model.layers),
            "frozen": sorted(model.frozen),
            "parts": sorted({*method.parts.names(), *self._needs}),
            "base": self._digest_of_base(model),
            "packing": None if model.packing is None else stored_packing(model.packing),
        }
        return configuration, self._fixed_parts(method)

    def _digest_of_base(self, model: FactorModel) -> str | None:
        """Of the frozen weights that every task stands on; they never change."""
        if self._base_digest is None and model.base == "frozen":
            self._base_digest = base_digest(model.base_weights())
        return self._base_digest

    def _fixed_parts(self, method: Method) -> dict[str, dict[str, Tensor]]:
        assert isinstance(method, IBPWF)
        elsewhere = method.model.base_weights()
        kept = {name: tensor for name, tensor in method.model.net.state_dict().items() if name not in elsewhere}
        return {"template": kept}

    @classmethod
    def load(
        cls, path: str | Path, *, net: nn.Module | None = None, device: str | torch.device = "auto", **parts: Any
    ) -> Learner:
        """Read a model folder. A network of your own class must be given again as `net` (its weights do not
        matter); networks from `ibpwf.models` and `nn.Sequential` ones are rebuilt from the folder. So must features
        and task inference of your own (`features=`, `inference=`), to answer, and an `optimizer` to learn."""
        return cls._of(open_folder(path, kind=KIND), net, device, **parts)

    @classmethod
    def _of(cls, opened: OpenedFolder, net: nn.Module | None, device: str | torch.device, **parts: Any) -> Learner:
        path = opened.path
        with whole_folder(path):
            if opened.content["method"] != IBPWF.name:
                raise StoreError(f"{path} holds a '{opened.content['method']}' model; read it with ibpwf.load(path).")
            if face_of(opened.content) is not None:
                raise StoreError(f"{path} holds a ContinualClassifier; read it with ibpwf.load(path).")
        return cls.restored(opened, net, device, **parts)

    @classmethod
    @pinned()
    def restored(
        cls, opened: OpenedFolder, net: nn.Module | None, device: str | torch.device = "auto", **parts: Any
    ) -> Learner:
        """The learner of an opened folder, whatever stands around it there."""
        path = opened.path
        if net is not None and not isinstance(net, nn.Module):
            raise InputError(f"net is a {type(net).__name__}; give the network itself, a torch.nn.Module.")
        content = read_content(opened)
        with whole_folder(path):
            where = f"{manifest_of(opened)} content.configuration"
            configuration = read_record(Configuration, content.configuration, where)
            files = parts_of(opened)
            template = files.get("template", {})
            check_part("template", template, template_shapes(configuration, {*template}))
            described = net is None
            if net is None and configuration.base is not None:
                raise NeedsParts(
                    f"{path} holds differences from a trained network, which is not in it; pass that network: "
                    "Learner.load(path, net=trained)."
                )
            if net is None:
                if configuration.network is None:
                    raise NeedsParts(
                        f"{path} holds a network of your own class; pass it again: Learner.load(path, net=MyNet())."
                    )
                with at_most(SPARE + 4 * sum(tensor.numel() for tensor in template.values())):
                    net = build(configuration.network)
            plain = uncompiled(net)
            check_same(plain, [list(line) for line in configuration.signature])
            buffers = {name for name, _ in plain.named_buffers()}
            for name, tensor in template.items():
                check_numbers("template", name, tensor, NOT_NAN if name in buffers else BOUNDED)
            own_parts = {name: parts.pop(name) for name in part_fields(Settings) if name in parts}
            for name in part_fields(Settings):
                if name not in own_parts and ":" in configuration.settings.get(name, {}).get("kind", ""):
                    raise NeedsParts(
                        f"{path} was taught with a {name} of your own; register it (ibpwf.parts.register), or pass "
                        f"it again: Learner.load(path, {name}=...)."
                    )
            settings = Settings.from_json({**configuration.settings, **own_parts})
            check_base(path, plain, configuration, settings, {*template})
            load_tensors(plain, template)
            wanted = [name for name in configuration.parts if parts.get(name) is None]
            for name in ("features", "inference"):
                if name in wanted or (":" in getattr(settings, name) and parts.get(name) is None):
                    raise NeedsParts(
                        f"{path} was taught with {name} of your own; pass it again: Learner.load(path, {name}=...)."
                    )
            model = factorize(net, **settings.factorization, head=configuration.head, include=[*configuration.layers])
            check_layers(configuration, model)
            model.frozen = frozenset(configuration.frozen)  # as it was, whatever the given network has
            take_stored_packing(model, configuration.packing, content.input_shape)
            learner = cls(model, settings, seed=content.seed, device=device, **parts)
            learner._needs = wanted
            learner.restore(opened, files)
            if described and learner.input_shape is not None:
                check_inputs(learner.method, learner.input_shape)
            return learner


SPARE = 1 << 22
"""Numbers that building a network may make beyond a few times those it has."""


def base_digest(weights: Mapping[str, Tensor]) -> str:
    """Of weights by their parameters' names."""
    return digest_of([], {"base": weights})


def check_base(
    path: Path, net: nn.Module, configuration: Configuration, settings: Settings, stored: set[str]
) -> None:
    """Refuse a network that is not the one that the tasks are differences from."""
    if (configuration.base is None) != (settings.base == "none"):
        raise CorruptModelError(f"field 'base' is {configuration.base}, and the settings say {settings.base}")
    if configuration.base is None:
        return
    given = {name: net.get_parameter(name) for name, _, _ in configuration.signature if name not in stored}
    if base_digest(given) != configuration.base:
        raise NeedsParts(
            f"{path} holds differences from another network than the one given: shapes agree, weights do not. Pass "
            "the trained network that its tasks were learned with."
        )


def template_shapes(configuration: Configuration, stored: set[str]) -> dict[str, Expected]:
    """What the network's own tensors must be like, by its signature; without a frozen base all of them are there."""
    shapes = {}
    for name, shape, kind in configuration.signature:
        if configuration.base is not None and name not in stored:
            continue
        dtype = getattr(torch, kind, None)
        if not isinstance(dtype, torch.dtype) or name in shapes:
            raise CorruptModelError(f"the signature says '{kind}' of '{name}'")
        shapes[name] = Expected(tuple(shape), dtype, numbers=None)
    return shapes


def check_layers(configuration: Configuration, model: FactorModel) -> None:
    """Patterns in the place of names, or a name too few, would make another model."""
    if [*model.layers] != configuration.layers:
        raise CorruptModelError(f"field 'layers' is {configuration.layers}; the network has {[*model.layers]}")
    for name in configuration.frozen:
        if name not in dict(model.net.named_parameters(remove_duplicate=False)):
            raise CorruptModelError(f"field 'frozen' has '{name}', which is no parameter of the network")
    if {*configuration.parts} - {*Parts.__annotations__}:
        raise CorruptModelError(
            f"field 'parts' is {configuration.parts}; known are {', '.join(Parts.__annotations__)}"
        )


def stored_packing(packing: Packing) -> dict[str, Any]:
    return {"fields": [asdict(field) for field in packing.fields], "padding": packing.padding}


def take_stored_packing(model: FactorModel, stored: StoredPacking | None, shape: Sequence[int] | None) -> None:
    """Let a model take inputs as they were packed, if that is what examples are like."""
    if stored is None:
        return
    packing = Packing(tuple(Field(f.name, tuple(f.shape), f.kind) for f in stored.fields), stored.padding)
    if shape is None or packing.row_shape != tuple(shape):
        raise CorruptModelError(
            f"field 'packing' makes rows of shape {packing.row_shape}, and input_shape is {shape}"
        )
    model.take_packing(packing)


def _check_factorization(model: FactorModel, settings: Settings) -> None:
    """Refuse settings that say otherwise than the model was factorized: one of the two would be ignored."""
    for name in Factorization.model_fields:
        if name in settings.model_fields_set and getattr(settings, name) != model.options.get(name):
            raise InputError(
                f"{name} is {getattr(settings, name)!r} in the settings, but the model was factorized with "
                f"{model.options.get(name)!r}; say it once, to factorize or in the settings of a plain network."
            )


def load(
    path: str | Path, *, net: nn.Module | None = None, device: str | torch.device = "auto", **parts: Any
) -> TaskLearner | ContinualClassifier:
    """Read a model folder: whatever was saved comes back as what it was, a `Learner`, a `ContinualClassifier`, or a
    learner of another method. `net` and parts of your own are for IBP-WF, as in `Learner.load`."""
    opened = open_folder(path, kind=KIND)
    if face_of(opened.content) is not None:
        from ibpwf.estimator import ContinualClassifier

        return ContinualClassifier.load(path, device=str(device))
    if opened.content.get("method") == IBPWF.name:
        return Learner._of(opened, net, device, **parts)
    return TaskLearner.load(path, device=device)


@contextlib.contextmanager
def open_model(
    path: str | Path,
    *,
    new: Callable[[], Any] | None = None,
    net: nn.Module | None = None,
    device: str | torch.device = "auto",
    **parts: Any,
) -> Iterator[Any]:
    """Hold a model folder while you learn into it: `with open_model("model") as learner: ...`.

    What is given is what `load` gives, or what `new` makes where there is none yet. Until the block ends, anyone else
    who wants to write to the folder, in this process or another, gets an error at once. Save inside the block.
    """
    if new is None:
        open_folder(path, kind=KIND)  # a path that holds no model is not made a folder
    with lock_folder(path):
        if new is not None and not os.path.lexists(Path(path) / MANIFEST):
            yield new()
        else:
            found = load(path, net=net, device=device, **parts)
            learner = found if isinstance(found, TaskLearner) else found.learner_
            discard_finished(path, learner.method.next_serial(len(learner.tasks)))
            yield found
