"""The report's colors: Okabe and Ito's palette for categories, one blue from light to dark for quantities.

Neither needs color vision: the palette is made for color-blind readers, the blues differ in lightness. A
quantity is drawn in one of `LEVELS` steps as a CSS class, `v0` (little) to `v31` (much), so that a page can
turn the scale round on a dark background; `w0` … `w31` are the text colors that read well on them.
"""

from __future__ import annotations

BLUE, ORANGE = "#0072b2", "#e69f00"
LEVELS = 32

# Lightness falls in even steps of OKLab, from 0.95 to 0.27, at nearly one hue: equal steps look equal.
# fmt: off
_BLUES = (
    "#def2ff", "#c3e6fd", "#abdafa", "#93cdf6", "#7cbff1", "#68b2eb", "#55a4e3", "#4696d9", "#3988cd",
    "#2f7abf", "#296daf", "#25609e", "#23538b", "#224777", "#203c63", "#1e314e", "#1b2739",
)
# fmt: on

RGB = tuple[float, float, float]


def to_rgb(color: str) -> RGB:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def to_hex(rgb: RGB) -> str:
    return "#" + "".join(f"{round(min(max(part, 0), 255)):02x}" for part in rgb)


def mix(first: str, second: str, share: float) -> str:
    """A color between two, `share` of the way to the second."""
    a, b = to_rgb(first), to_rgb(second)
    return to_hex((a[0] + (b[0] - a[0]) * share, a[1] + (b[1] - a[1]) * share, a[2] + (b[2] - a[2]) * share))


def blues(share: float) -> str:
    """The map at 0 (light) to 1 (dark)."""
    place = min(max(share, 0.0), 1.0) * (len(_BLUES) - 1)
    below = min(int(place), len(_BLUES) - 2)
    return mix(_BLUES[below], _BLUES[below + 1], place - below)


def luminance(color: str) -> float:
    """Relative luminance as WCAG defines it."""
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in to_rgb(color))
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    """Contrast ratio of two colors, 1 to 21."""
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def text_on(color: str) -> str:
    """Black or white, whichever reads better on a color."""
    return "#ffffff" if contrast("#ffffff", color) >= contrast("#000000", color) else "#000000"


def level(value: float, low: float, high: float) -> int:
    """The step of the scale from `low` to `high` that a value falls on."""
    share = (value - low) / (high - low) if high > low else 1.0
    return min(max(int(share * LEVELS), 0), LEVELS - 1)


def level_color(step: int, *, dark: bool = False) -> str:
    """Much is dark on a light page and light on a dark one; the very ends of the map are left out."""
    share = step / (LEVELS - 1)
    return blues(0.86 - 0.74 * share) if dark else blues(0.05 + 0.81 * share)


def scale_css(*, dark: bool = False) -> str:
    """The classes of the quantity scale."""
    rules = []
    for step in range(LEVELS):
        color = level_color(step, dark=dark)
        rules.append(f".v{step}{{fill:{color}}}.w{step}{{fill:{text_on(color)}}}")
    return "".join(rules)
