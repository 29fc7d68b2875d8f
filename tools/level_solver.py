#!/usr/bin/env python3
"""Computes the quantiser tables of docs/algorithm.md, section 3.4, or holds levels.h against them.

    python tools/level_solver.py                                # print the tables
    python tools/level_solver.py --check core/format/levels.h   # compare, to ten decimals

A table is the Lloyd-Max quantiser of |t|: every level is the mean of its cell, every threshold the
middle of two levels. The density of t is the standard normal, or that of one coordinate of a unit
vector in 8 dimensions, where t^2 ~ Beta(1/2, 7/2). Cells have closed forms for both, so the
conditions are solved by Newton's method in double, to about 1e-14.

The scalar codecs use odd integers up to 255 in place of the levels, in any unit, since the factor
of a key absorbs it (docs/decisions/0003-integer-levels.md):
  scalar5  of all such integers those with the least squared distance from the levels, each level
           weighted by its probability;
  scalar4  the nearest odd integers in the unit that makes the largest level 255.

Needs nothing but Python. Exit codes: 0 done or equal, 1 differs, 2 usage, 3 bad input.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from dataclasses import dataclass
from pathlib import Path

TOLERANCE = 5.1e-11  # constants are written with ten decimals
LARGEST_INTEGER = 255


@dataclass(frozen=True)
class Density:
    """Of t > 0: the end of its range, the density, and mass and first moment of a cell (a, b)."""

    end: float
    at: callable
    mass: callable
    moment: callable


def normal_density() -> Density:
    def at(t: float) -> float:
        return 0.0 if t == math.inf else math.exp(-t * t / 2) * math.sqrt(2 / math.pi)

    def mass(a: float, b: float) -> float:
        return math.erfc(a / math.sqrt(2)) - math.erfc(b / math.sqrt(2))

    return Density(math.inf, at, mass, lambda a, b: at(a) - at(b))


def sphere_density() -> Density:
    whole = 5 * math.pi / 32  # of (1 - t^2)^(5/2) over 0..1

    def primitive(t: float) -> float:  # of (1 - t^2)^(5/2), which is cos^6 x dx with t = sin x
        x = math.asin(t)
        series = 15 * math.sin(2 * x) / 64 + 3 * math.sin(4 * x) / 64 + math.sin(6 * x) / 192
        return 5 * x / 16 + series

    def moment(a: float, b: float) -> float:
        return ((1 - a * a) ** 3.5 - (1 - b * b) ** 3.5) / (7 * whole)

    return Density(
        1.0,
        lambda t: (1 - t * t) ** 2.5 / whole,
        lambda a, b: (primitive(b) - primitive(a)) / whole,
        moment,
    )


@dataclass(frozen=True)
class Quantiser:
    thresholds: list[float]
    levels: list[float]
    masses: list[float]


def middles(levels: list[float]) -> list[float]:
    return [(a + b) / 2 for a, b in zip(levels, levels[1:])]


def cells(density: Density, levels: list[float]) -> list[tuple[float, float]]:
    edges = [0.0, *middles(levels), density.end]
    return list(zip(edges, edges[1:]))


def newton_step(density: Density, levels: list[float]) -> list[float]:
    """The change of the levels that makes level = mean of its cell, to first order."""
    below, main, above, rest = [], [], [], []
    for level, (a, b) in zip(levels, cells(density, levels)):
        mass = density.mass(a, b)
        mean = density.moment(a, b) / mass
        # Both edges move by half of what the levels on their sides do; the outer two are fixed.
        left = density.at(a) * (mean - a) / mass / 2 if a > 0 else 0.0
        right = density.at(b) * (b - mean) / mass / 2 if b < density.end else 0.0
        below.append(-left)
        main.append(1 - left - right)
        above.append(-right)
        rest.append(mean - level)
    for i in range(1, len(levels)):  # a tridiagonal system, eliminated downwards
        factor = below[i] / main[i - 1]
        main[i] -= factor * above[i - 1]
        rest[i] -= factor * rest[i - 1]
    step = [0.0] * len(levels)
    for i in reversed(range(len(levels))):
        later = above[i] * step[i + 1] if i + 1 < len(levels) else 0.0
        step[i] = (rest[i] - later) / main[i]
    return step


def solve(density: Density, count: int) -> Quantiser:
    """The Lloyd-Max quantiser of t > 0 with `count` levels."""
    reach = min(density.end, 3.5)
    levels = [reach * (i + 0.5) / count for i in range(count)]
    for _ in range(200):  # Lloyd's own steps bring every start close
        levels = [density.moment(a, b) / density.mass(a, b) for a, b in cells(density, levels)]
    for _ in range(50):
        step = newton_step(density, levels)
        levels = [level + change for level, change in zip(levels, step)]
        if max(map(abs, step)) < 1e-14:
            masses = [density.mass(a, b) for a, b in cells(density, levels)]
            return Quantiser(middles(levels), levels, masses)
    raise ArithmeticError(f"no convergence with {count} levels")


def nearest_odd(x: float) -> int:
    return min(LARGEST_INTEGER, max(1, 2 * math.floor(x / 2) + 1))


def full_range_integers(levels: list[float]) -> list[int]:
    return [nearest_odd(level * LARGEST_INTEGER / levels[-1]) for level in levels]


def integer_error(quantiser: Quantiser, integers: list[int]) -> float:
    """Mean squared distance of the levels from the integers in their best unit."""
    terms = list(zip(quantiser.masses, quantiser.levels, integers))
    cross = sum(p * a * v for p, a, v in terms)
    square = sum(p * v * v for p, _, v in terms)
    return sum(p * a * a for p, a, _ in terms) - cross * cross / square


def best_integers(quantiser: Quantiser) -> list[int]:
    """Every unit gives its nearest odd integers, which change where a level passes an even one."""
    limit = (LARGEST_INTEGER + 1) / quantiser.levels[-1]
    edges = {e / a for a in quantiser.levels for e in range(2, LARGEST_INTEGER + 2, 2)}
    units = sorted(edge for edge in edges if edge < limit) + [limit]
    candidates = []
    for low, high in zip(units, units[1:]):
        integers = [nearest_odd(level * (low + high) / 2) for level in quantiser.levels]
        candidates.append((integer_error(quantiser, integers), integers))
    return min(candidates)[1]


def distortion(quantiser: Quantiser, second_moment: float) -> float:
    """Mean squared error of the quantiser: what the levels, being cell means, leave of E t^2."""
    kept = sum(p * a * a for p, a in zip(quantiser.masses, quantiser.levels))
    return second_moment - kept


def tables() -> dict[str, list[float]]:
    """All constants of levels.h by name."""
    polar = solve(sphere_density(), 8)
    normal2, normal4, normal5 = (solve(normal_density(), n) for n in (2, 8, 16))
    return {
        "kPolarThresholds": polar.thresholds,
        "kPolarLevels": polar.levels,
        "kNormal4Thresholds": normal4.thresholds,
        "kNormal4Levels": normal4.levels,
        "kScalar4Levels": full_range_integers(normal4.levels),
        "kNormal5Thresholds": normal5.thresholds,
        "kNormal5Levels": normal5.levels,
        "kScalar5Levels": best_integers(normal5),
        "kNormal2Threshold": normal2.thresholds,
        "kNormal2Levels": normal2.levels,
    }


def parse_levels(text: str) -> dict[str, list[float]]:
    """The constants of a levels.h: name to numbers, as written."""
    found = {}
    code = re.sub(r"//.*", "", text)
    for name, body in re.findall(r"constexpr\s+\w+\s+(k\w+)(?:\[\d+\])?\s*=\s*([^;]*);", code):
        numbers = re.findall(r"[-+]?\d[\d.]*(?:[eE][-+]?\d+)?", body)
        found[name] = [float(number) for number in numbers]
    return found


def differences(written: dict[str, list[float]], wanted: dict[str, list[float]]) -> list[str]:
    out = []
    for name, numbers in wanted.items():
        if len(written[name]) != len(numbers):
            out.append(f"{name}: {len(written[name])} numbers, accepted: {len(numbers)}")
            continue
        for i, (got, number) in enumerate(zip(written[name], numbers)):
            if not abs(got - number) <= TOLERANCE:
                out.append(f"{name}[{i}]: {got!r}, accepted: {number:.12g} within {TOLERANCE:g}")
    return out


def check(path: Path) -> int:
    wanted = tables()
    try:
        written = parse_levels(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        print(f"{path}: {error}", file=sys.stderr)
        return 3
    missing = [name for name in wanted if name not in written]
    if missing:
        print(f"{path}: lacks {', '.join(missing)}", file=sys.stderr)
        return 3
    found = differences(written, wanted)
    for line in found:
        print(f"{path}: {line}", file=sys.stderr)
    if found:
        return 1
    print(f"{path}: {sum(map(len, wanted.values()))} numbers agree")
    return 0


def show() -> None:
    for name, numbers in tables().items():
        is_integer = all(isinstance(number, int) for number in numbers)
        words = [str(number) if is_integer else f"{number:.10f}" for number in numbers]
        print(f"{name}: {' '.join(words)}")
    for count in (8, 16):
        quantiser = solve(normal_density(), count)
        base = distortion(quantiser, 1.0)
        for word, integers in (
            ("full range", full_range_integers(quantiser.levels)),
            ("best", best_integers(quantiser)),
        ):
            error = integer_error(quantiser, integers)
            print(
                f"{2 * count} levels, squared error {base:.6e}; integers, {word}: "
                f"+{error:.2e} ({100 * error / base:.3f} %): {' '.join(map(str, integers))}"
            )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", type=Path, metavar="LEVELS_H", help="compare this file")
    options = parser.parse_args(arguments)
    if options.check is not None:
        return check(options.check)
    show()
    return 0


if __name__ == "__main__":
    sys.exit(main())
