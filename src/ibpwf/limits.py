"""How much may be asked for: what would take more memory or time than anybody has is refused before it is begun."""

from __future__ import annotations

from typing import Literal

from ibpwf.errors import InputError

Sizes = int | tuple[int, ...] | Literal["auto"]

MOST_WEIGHTS = 1 << 29
"""Of one layer that is built from a user's numbers: 2 GiB, and several times that in training."""

MOST_FEATURES = 20_000
"""Of φ: the covariance of so many takes 3.2 GB."""

MOST_SUMS = 50_000
"""Random sums that take the place of a backbone's features: a router on so many keeps 10 GB."""

MOST_IMAGE_SIZES = 4
MOST_PATCH_SIZES = 4

MOST_POSTERIOR_SAMPLES = 10_000
MOST_SAMPLED_NUMBERS = 1 << 32
"""Weights of all posterior samples together: 16 GiB."""

EXACT = 1 << 53
"""Whole numbers from here on are not all kept by a float; so long a number is an identifier."""

SMALLEST_RATE = 1e-9
"""Of false alarms: less cannot be told from none."""


def check_layer(inputs: int, width: int, where: str = "the network") -> None:
    """Refuses a layer that is too large to be built."""
    if inputs * width > MOST_WEIGHTS:
        raise InputError(
            f"{where} would have a layer from {inputs:,} inputs to {width:,}: {inputs * width:,} weights, "
            f"{inputs * width * 4 / 1e9:,.0f} GB. At most {MOST_WEIGHTS:,} are built; use fewer inputs or a narrower "
            "layer."
        )


def check_features(count: int) -> None:
    """Refuses features whose covariance would be too large to be kept."""
    if count > MOST_FEATURES:
        raise InputError(
            f"tasks would be inferred from {count:,} features, whose covariance takes {8 * count**2 / 1e9:,.0f} GB; "
            f"at most {MOST_FEATURES:,} can be used. Choose a narrower layer, or features='random'."
        )


def check_patch_sizes(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Refuses no size at all, more than anybody needs, and one given twice."""
    if not 1 <= len(sizes) <= MOST_PATCH_SIZES or len({*sizes}) < len(sizes):
        raise InputError(f"sizes is {list(sizes)}; give one to {MOST_PATCH_SIZES} different sizes, such as [5, 8].")
    return sizes


def check_image_sizes(sizes: Sizes) -> Sizes:
    """Of several, refuses none at all, more than anybody needs, and one given twice."""
    if isinstance(sizes, tuple) and (not 1 <= len(sizes) <= MOST_IMAGE_SIZES or len({*sizes}) < len(sizes)):
        raise InputError(
            f"size is {list(sizes)}; give one to {MOST_IMAGE_SIZES} different sizes, such as [224, 288]."
        )
    return sizes


def check_posterior_samples(posterior_samples: int, weights: int = 0, name: str = "posterior_samples") -> None:
    """Reject more posterior samples of so many weights than can be held."""
    if not 0 <= posterior_samples <= MOST_POSTERIOR_SAMPLES:
        raise InputError(
            f"{name} is {posterior_samples}; give how many to average over, at most "
            f"{MOST_POSTERIOR_SAMPLES:,}, such as 100."
        )
    if posterior_samples * weights > MOST_SAMPLED_NUMBERS:
        raise InputError(
            f"{name} is {posterior_samples}, and so many samples of {weights:,} weights take "
            f"{4 * posterior_samples * weights / 1e9:,.0f} GB; give at most {MOST_SAMPLED_NUMBERS // weights:,}."
        )


def check_rate(rate: float, name: str = "false_alarm_rate") -> None:
    """Refuses what is no share of false alarms."""
    if not SMALLEST_RATE <= rate < 1:
        raise InputError(f"{name} is {rate!r}; give a share between {SMALLEST_RATE:g} and 1, such as 0.01.")
