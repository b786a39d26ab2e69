"""Options that several commands share, each declared once: a command inherits those that it has."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ibpwf.cli.parsing import Fraction, argument, option
from ibpwf.errors import InputError

if TYPE_CHECKING:
    from ibpwf.data.options import ReadOptions
    from ibpwf.lab.experiments.cluster import Cluster
    from ibpwf.lab.experiments.run_config import RunConfig


DATA = (
    "A .csv, .tsv, .parquet, .npz or IDX file, an image, a folder of images (one subfolder per class), or the shards "
    "of one table: a folder of them, or a quoted pattern."
)


@dataclass(kw_only=True)
class OfModel:
    model: Path = argument("MODEL", "The model folder.", check="ibpwf.data.opening:check_there")


@dataclass(kw_only=True)
class OfData(OfModel):
    data: Path = argument("DATA", DATA, check="ibpwf.data.naming:check_data")


@dataclass(kw_only=True)
class AsJson:
    json: bool = option(False, "Print JSON to stdout, and nothing else.")


@dataclass(kw_only=True)
class OnDevice:
    device: str = option(
        "auto", "The device: auto, cpu, cuda or cuda:N.", metavar="NAME", check="ibpwf.device:check_device"
    )


@dataclass(kw_only=True)
class Labeled:
    label: str | None = option(
        None,
        "The column (or array of an .npz file) that holds the labels.",
        metavar="COLUMN",
        usual="as in earlier files, or the one named label, class, target or y",
    )


@dataclass(kw_only=True)
class Columns:
    """How a file's columns are read."""

    ignore: tuple[str, ...] = option((), "Ignore a column, such as an identifier.", metavar="COLUMN")
    unknown: bool = option(
        False, "Encode categories never seen before as zeros, in later files too.", "--unknown-as-zeros"
    )
    missing: Literal["error", "mean"] | None = option(
        None,
        "Reject missing values, or replace them by the column's mean in the first file.",
        usual="as for the first file: error",
    )

    def read_options(self, with_labels: bool | None = None) -> ReadOptions:
        """What a command was told about reading, as the library takes it."""
        from ibpwf.data.options import ReadOptions

        names = {one.name for one in fields(ReadOptions)}
        given = {one.name: getattr(self, one.name) for one in fields(self) if one.name in names}
        given["unknown"] = "zeros" if self.unknown else None
        return ReadOptions(**given, with_labels=with_labels, naming=flag)


@dataclass(kw_only=True)
class Categories:
    categories: tuple[str, ...] = option((), "Treat a column of numbers as categories.", metavar="COLUMN")


@dataclass(kw_only=True)
class Texts:
    text: tuple[str, ...] = option((), "Encode a column of texts with a pretrained encoder.", metavar="COLUMN")
    encoder: str | None = option(None, "The text encoder; see `ibpwf backbones`.", metavar="NAME", usual="minilm-l6")


def read_pixels(text: str, flag: str) -> tuple[int, int]:
    """`32x24` as height and width."""
    found = re.fullmatch(r"(\d{1,6})[x×,](\d{1,6})", text.replace(" ", ""))
    if found is None:
        raise InputError(f"{flag} is '{text}'; give height and width in pixels, such as 32x32.")
    return int(found[1]), int(found[2])


@dataclass(kw_only=True)
class Images:
    size: tuple[int, int] | None = option(
        None, "Resize images to this height and width.", metavar="HxW", read=read_pixels
    )
    channels: int | None = option(None, "Convert images to grayscale (1) or color (3).")


@dataclass(kw_only=True)
class Fast:
    fast: bool = option(False, "Evaluate only the most likely tasks' experts, each once (models with a router).")


@dataclass(kw_only=True)
class TestFraction:
    test_fraction: Fraction | None = option(
        None, "Hold out this fraction of every class and measure accuracy on it.", usual="nothing is held out"
    )


@dataclass(kw_only=True)
class Resume:
    resume: bool = option(False, "Resume interrupted training, with bit-identical results.")


@dataclass(kw_only=True)
class Set:
    set: tuple[str, ...] = option((), "Change a setting, such as --set kappa=0.6.", metavar="NAME=VALUE")

    def changes(self) -> dict[str, Any]:
        """The settings by name; a value is JSON where it is any."""
        from ibpwf.parts import parse_assignment

        return dict(parse_assignment(text) for text in self.set)


def read_widths(text: str, flag: str) -> tuple[int, ...]:
    words = text.replace(" ", "").split(",")
    if not all(word.isascii() and word.isdigit() and 0 < int(word) <= 1 << 20 for word in words):
        raise InputError(f"{flag} is '{text}'; give the widths of the hidden layers, such as 400 or 400,200.")
    return tuple(map(int, words))


def read_alpha(text: str, flag: str) -> float | str:
    try:
        return "auto" if text == "auto" else float(text)
    except ValueError:
        raise InputError(f"{flag} is '{text}'; give a number above 0, or auto.") from None


@dataclass(kw_only=True)
class NewModel(Set):
    """What the first task of a model decides; later ones have the same."""

    hidden: tuple[int, ...] | None = option(
        None, "New model: widths of an MLP's hidden layers.", metavar="N,N", usual="the recipe's", read=read_widths
    )
    alpha: float | str | None = option(
        None,
        "New model: expected number of factors per task and layer.",
        metavar="NUMBER",
        usual="half of the layer's rank",
        read=read_alpha,
    )
    epochs: int | None = option(
        None, "New model: epochs; half as many again fine-tune.", usual="by the number of rows"
    )
    seed: int | None = option(
        None, "New model: the seed of all random numbers.", usual="0", least=0, most=(1 << 32) - 1
    )
    false_alarm_rate: Fraction | None = option(
        None, "New model: fraction of ordinary inputs that may be flagged as novel.", usual="0.01"
    )

    def parameters(self) -> dict[str, Any]:
        """What was asked of a new model, as `ContinualClassifier` takes it."""
        asked = {name: getattr(self, name) for name in ("hidden", "alpha", "epochs", "false_alarm_rate")}
        asked = {name: value for name, value in {**asked, "random_state": self.seed}.items() if value is not None}
        changes = self.changes()
        for name in changes:
            if name in asked:
                raise InputError(f"{flag(name)} and --set {name} were both given; choose one.")
        # A wrong one is named before the data are read, but for those of a part whose kind the recipe may choose.
        sure = {name: value for name, value in changes.items() if name.partition(".")[0] in {name, *changes}}
        sure |= {name: asked[name] for name in ("alpha", "epochs") if name in asked}
        if sure:
            from ibpwf.settings import Settings  # imports torch

            Settings(**sure)
        return {**asked, "settings": changes} if changes else asked


FLAGS = {
    "unknown": "--unknown-as-zeros",
    "random_state": "--seed",
    "validate": "--test-fraction",
    "held_out": "--test-fraction",
    "anew": "--restart",
}
"""Arguments of the library whose options have another name."""


def flag(name: str, value: object = None) -> str:
    """An argument of the library as it is written on the command line."""
    written = FLAGS.get(name, f"--{name.replace('_', '-')}")
    if value is None:
        return written
    return f"{written} {'x'.join(map(str, value)) if isinstance(value, tuple) else value}"


def task_name(data: Path) -> str:
    """A task's name from its file's: `photos/`, `spring.csv` and `spring.tar.csv` give photos, spring, spring.tar."""
    plain = Path(data).absolute()
    name = plain.name if plain.is_dir() else plain.stem
    return name or plain.name


def command_typed() -> str:
    """The command line as it was given."""
    return "ibpwf " + shlex.join(sys.argv[1:])


def flush_denormals() -> None:
    """Denormal numbers in Adam's moments halve the speed of a long run. Training flushes them by itself, in its own
    thread; the further threads of a wide network take that over only if it is said before they start."""
    import torch

    torch.set_flush_denormal(True)


@dataclass(kw_only=True)
class OfScenario(OnDevice, Resume, Set):
    """What `run` and `compare` have in common."""

    scenario: str = argument(
        "SCENARIO",
        "The scenario: split-mnist, permuted-mnist, split-digits (needs no download), ..., a registered name, or "
        "module:function.",
        check="ibpwf.lab.names:check_scenario",
    )
    preset: str = option(
        "paper",
        "Settings to start from: paper, default, quick or, where there is one, best.",
        metavar="NAME",
        check="ibpwf.lab.names:check_preset",
    )
    tasks: int | None = option(None, "Only the first N tasks.", least=1)
    examples: int | None = option(None, "Only the first N training and test examples of each class.", least=1)
    no_models: bool = option(
        False, "Store results but no models: saves disk, but interrupted seeds cannot be resumed."
    )

    def config(self, scenario: str, **more: Any) -> RunConfig:
        """What these options ask for, of a scenario that may be another."""
        from ibpwf.lab.experiments.run_config import RunConfig

        same = {name: getattr(self, name) for name in ("preset", "tasks", "examples", "device")}
        return RunConfig(scenario, **same, models=not self.no_models, **more)


@dataclass(kw_only=True)
class OnCluster:
    """Where workers train."""

    cluster: str | None = option(
        None,
        "Train in the workers of a Dask scheduler, such as tls://host:8786, or its scheduler file; local:N starts N "
        "workers on this machine.",
        metavar="ADDRESS",
    )
    tls_ca_file: Path | None = option(None, "Certificate authority of the cluster (PEM).", usual="Dask's own")
    tls_cert: Path | None = option(None, "Client certificate for the cluster (PEM).", usual="Dask's own")
    tls_key: Path | None = option(None, "Private key of the client certificate (PEM).", usual="Dask's own")
    cluster_insecure: bool = option(False, "Allow unencrypted connections to other machines.")

    def engine(self, say: Callable[[str], None] = lambda text: None) -> Cluster | None:
        """What trains, if not this process; rejected here if it cannot."""
        tls = (self.tls_ca_file, self.tls_cert, self.tls_key)
        if self.cluster is None:
            if any(tls) or self.cluster_insecure:
                raise InputError("--tls-... and --cluster-insecure need --cluster ADDRESS.")
            return None
        from ibpwf.lab.experiments.cluster import Certificates, Cluster

        return Cluster(self.cluster, Certificates(*tls), self.cluster_insecure, say)
