"""Colours that are distinguishable: from the page, from each other, and by the colour-blind."""

from itertools import combinations

import numpy as np
import numpy.typing as npt
import pytest

from downpour.show.figures.style import DARK, LIGHT, area, series, turned_where_crowded, variables

Rgb = npt.NDArray[np.float64]

# How people without the long-, middle- or short-wave cones see linear RGB (Machado et al., 2009).
BLINDNESS = {
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
TO_LMS = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]
SERIES = [name for name in LIGHT if name.startswith("series-")]


def linear(colour: str) -> Rgb:
    """Turn "#rrggbb" into linear RGB."""
    parts = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    """Return how bright a colour is, by WCAG."""
    return float(linear(colour) @ np.array([0.2126, 0.7152, 0.0722]))


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, by WCAG: 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def oklab(rgb: Rgb) -> Rgb:
    """Turn linear RGB into a space in which distances are what people see."""
    lab: Rgb = np.array(TO_LAB) @ np.cbrt(np.array(TO_LMS) @ rgb.clip(0, 1))
    return lab


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_everything_stands_out_from_the_page(colours: dict[str, str]) -> None:
    """Letters by 4.5 to 1, as WCAG asks for; lines and bars by 3 to 1."""
    for name in ("ink", "muted", "failure"):
        assert contrast(colours[name], colours["paper"]) >= 4.5, name
    for name in SERIES:
        assert contrast(colours[name], colours["paper"]) >= 3, name


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("blindness", BLINDNESS)
def test_the_first_series_can_be_told_apart_by_the_colour_blind(
    colours: dict[str, str], blindness: str
) -> None:
    """Blue and orange, which most figures need, differ plainly; what is near has another mark."""
    seen = {n: oklab(np.array(BLINDNESS[blindness]) @ linear(colours[n])) for n in SERIES}
    assert np.linalg.norm(seen["series-1"] - seen["series-2"]) > 0.1
    for one, other in combinations(range(len(SERIES)), 2):
        near = np.linalg.norm(seen[SERIES[one]] - seen[SERIES[other]]) < 0.1
        if near:
            assert series(one)["marker"] != series(other)["marker"]


def test_lines_are_told_apart_without_colour() -> None:
    """Twelve lines have twelve looks."""
    looks = {(str(series(n)["marker"]), str(series(n)["linestyle"])) for n in range(6)}
    assert len(looks) == 6
    assert len({str(sorted(series(n).items(), key=str)) for n in range(12)}) == 12


def test_bars_are_told_apart_without_colour() -> None:
    """All but the first two by their hatches."""
    hatches = [area(place)["hatch"] for place in range(len(SERIES))]
    assert hatches[:2] == ["", ""]
    assert len(set(hatches)) == len(hatches) - 1


def test_names_are_turned_only_where_they_would_touch() -> None:
    """A long name among short ones has room."""
    assert turned_where_crowded(["random", "class", "equal", "dirichlet(0.3)"], 4.3) == {}
    assert (
        turned_where_crowded([f"dirichlet({n / 10})" for n in range(1, 6)], 4.3)["rotation"] == 20
    )


def test_light_and_dark_name_the_same_colours() -> None:
    """So a page can put one in the other's place; within one, no two are the same."""
    assert LIGHT.keys() == DARK.keys()
    assert len(set(LIGHT.values())) == len(LIGHT)
    assert "--ink: #22262b;" in variables(LIGHT)
