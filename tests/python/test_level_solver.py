"""tools/level_solver.py: its tables are Lloyd-Max quantisers, and levels.h holds its tables.

The oracle knows no closed form: it integrates the two densities numerically, cell by cell.
"""

import math
import struct
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOLVER = ROOT / "tools/level_solver.py"
LEVELS_H = ROOT / "core/format/levels.h"
sys.path.insert(0, str(SOLVER.parent))
import level_solver  # noqa: E402


def integrate(f, a, b, steps=2000):
    """Simpson's rule; the functions here are smooth on their cells."""
    h = (b - a) / steps
    inner = sum(f(a + i * h) * (4 if i % 2 else 2) for i in range(1, steps))
    return (f(a) + inner + f(b)) * h / 3


def normal(t):
    return math.exp(-t * t / 2)


def coordinate_of_unit_vector(t):
    """d = 8: t^2 ~ Beta(1/2, 7/2) has density t^2^(-1/2) (1 - t^2)^(5/2), times dt^2/dt = 2 t."""
    return max(0.0, 1 - t * t) ** 2.5


CASES = [
    # density, its end for the oracle (the normal's tail beyond 12 is below 1e-31), solver's, levels
    (normal, 12.0, level_solver.normal_density, 2),
    (normal, 12.0, level_solver.normal_density, 8),
    (normal, 12.0, level_solver.normal_density, 16),
    (coordinate_of_unit_vector, 1.0, level_solver.sphere_density, 8),
]


@pytest.mark.parametrize(("f", "end", "density", "count"), CASES)
def test_levels_are_means_of_cells_and_thresholds_middles(f, end, density, count):
    quantiser = level_solver.solve(density(), count)
    assert len(quantiser.levels) == count
    assert quantiser.levels == sorted(quantiser.levels)
    for threshold, low, high in zip(quantiser.thresholds, quantiser.levels, quantiser.levels[1:]):
        assert threshold == pytest.approx((low + high) / 2, abs=1e-15)
    edges = [0.0, *quantiser.thresholds, end]
    whole = integrate(f, 0.0, end)
    for i, level in enumerate(quantiser.levels):
        mass = integrate(f, edges[i], edges[i + 1])
        mean = integrate(lambda t: t * f(t), edges[i], edges[i + 1]) / mass
        # Simpson with h <= 12 / 2000: below 1e-10 for derivatives of order 1 to 100.
        assert level == pytest.approx(mean, abs=1e-9)
        assert quantiser.masses[i] == pytest.approx(mass / whole, abs=1e-9)


@pytest.mark.parametrize("count", [2, 8, 16])
def test_distortion_is_the_integral_of_the_squared_error(count):
    quantiser = level_solver.solve(level_solver.normal_density(), count)
    edges = [0.0, *quantiser.thresholds, 12.0]
    error = sum(
        integrate(lambda t, a=level: (t - a) ** 2 * normal(t), edges[i], edges[i + 1])
        for i, level in enumerate(quantiser.levels)
    ) / integrate(normal, 0.0, 12.0)
    assert level_solver.distortion(quantiser, 1.0) == pytest.approx(error, abs=1e-9)


def test_integers_are_odd_ascending_and_fit_seven_bits_and_a_sign():
    for name, numbers in level_solver.tables().items():
        if name.startswith("kScalar"):
            assert all(v % 2 == 1 and 1 <= v <= 255 for v in numbers)
            assert all(low < high for low, high in zip(numbers, numbers[1:]))


def test_scalar5_integers_cannot_be_improved_one_or_two_at_a_time():
    quantiser = level_solver.solve(level_solver.normal_density(), 16)
    best = level_solver.best_integers(quantiser)
    error = level_solver.integer_error(quantiser, best)
    tried = 0
    for i in range(16):
        for j in range(i, 16):
            for di in (-2, 2):
                for dj in (-2, 0, 2):
                    other = list(best)
                    other[i] += di
                    other[j] += dj
                    if other == best or max(other) > 255 or min(other) < 1:
                        continue
                    tried += 1
                    assert level_solver.integer_error(quantiser, other) > error
    assert tried > 700


def test_scalar5_integers_beat_every_unit_of_a_fine_grid():
    quantiser = level_solver.solve(level_solver.normal_density(), 16)
    error = level_solver.integer_error(quantiser, level_solver.best_integers(quantiser))
    limit = 256 / quantiser.levels[-1]
    for step in range(1, 4000):
        unit = limit * step / 4000
        integers = [max(1, 2 * math.floor(level * unit / 2) + 1) for level in quantiser.levels]
        assert level_solver.integer_error(quantiser, integers) >= error


def test_levels_h_is_written_in_the_fp32_of_the_exact_numbers():
    # A constant is ten decimals, rounded to fp32: the decimals must not have moved that rounding.
    written = level_solver.parse_levels(LEVELS_H.read_text(encoding="utf-8"))
    for name, numbers in level_solver.tables().items():
        for got, number in zip(written[name], numbers):
            assert struct.pack("f", got) == struct.pack("f", number), name


def run(*arguments):
    command = [sys.executable, str(SOLVER), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_check_accepts_levels_h():
    result = run("--check", LEVELS_H)
    assert result.returncode == 0, result.stderr
    assert "88 numbers agree" in result.stdout


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("1.8435318063F", "1.8435318074F", "kNormal4Thresholds[5]: 1.8435318074"),
        ("0.6193476459F", "0.6193476449F", "kPolarLevels[6]"),
        ("3.2607324934", "3.2607324944", "kNormal5Levels[15]"),
        ("{11, 37, 61,", "{11, 35, 61,", "kScalar4Levels[1]: 35"),
        ("{5,  15,", "{5,  17,", "kScalar5Levels[1]: 17"),
        ("{11, 37, 61,", "{11, 37,", "kScalar4Levels: 7 numbers"),
        ("kNormal2Threshold = 0.9815988216F", "kNormal2Threshold = 0.9815988226F", "kNormal2Thr"),
    ],
)
def test_check_finds_what_differs(tmp_path, old, new, said):
    text = LEVELS_H.read_text(encoding="utf-8")
    assert text.count(old) == 1
    changed = tmp_path / "levels.h"
    changed.write_text(text.replace(old, new), encoding="utf-8")
    result = run("--check", changed)
    assert result.returncode == 1
    assert said in result.stderr


def test_check_refuses_what_it_cannot_read(tmp_path):
    result = run("--check", tmp_path / "none.h")
    assert result.returncode == 3
    assert "none.h" in result.stderr
    partial = tmp_path / "levels.h"
    partial.write_text(
        LEVELS_H.read_text(encoding="utf-8").replace("kPolarLevels", "kOther"), encoding="utf-8"
    )
    result = run("--check", partial)
    assert result.returncode == 3
    assert "lacks kPolarLevels" in result.stderr


def test_without_arguments_it_prints_every_table():
    result = run()
    assert result.returncode == 0
    assert "kNormal4Thresholds: 0.2582216647 0.5224037090" in result.stdout
    assert "kScalar5Levels: 5 15 25 35" in result.stdout
    assert run("--no-such-option").returncode == 2
