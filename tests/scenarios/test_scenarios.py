"""scenarios.txt names, for each case, the tests that show it. Here: that all of them exist."""

import ast
import fnmatch
import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
MAP = HERE / "scenarios.txt"


def read_map():
    """[(id, what must hold, [(where, name), ..])]"""
    entries = []
    for line in MAP.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        head = re.fullmatch(r"\[([^\]]*)\] (.+)", line)
        if head:
            entries.append((head[1], head[2], []))
        else:
            where, separator, name = line.partition(" :: ")
            assert separator and entries, line
            entries[-1][2].append((where, name))
    return entries


ENTRIES = read_map()
TESTS = sorted({test for _, _, tests in ENTRIES for test in tests})


def doctest_names(path):
    """Names of the TEST_CASEs of a source that is in the list of a CMakeLists.txt."""
    below = [REPOSITORY / "tests" / area for area in ("unit", "cache")]
    folders = [f for f in path.parents if any(f == b or b in f.parents for b in below)]
    lists = [folder / "CMakeLists.txt" for folder in folders]
    texts = [file.read_text() for file in lists if file.is_file()]
    names = [str(path.relative_to(file.parent)) for file in lists if file.is_file()]
    assert any(re.search(rf"^\s*{re.escape(n)}$", t, re.M) for n, t in zip(names, texts)), path
    string = r'"(?:[^"\\]|\\.)*"'
    cases = re.findall(rf"TEST_CASE\(((?:\s*{string})+)\)", path.read_text())
    return ["".join(part[1:-1] for part in re.findall(string, case)) for case in cases]


def python_names(path):
    tree = ast.parse(path.read_text())
    return [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]


def c_names(path):
    """Functions without parameters that are defined here and called somewhere in the folder."""
    defined = re.findall(r"^(?:static )?void (test_\w+)\([^)]*\) \{", path.read_text(), re.M)
    calls = "".join(other.read_text() for other in path.parent.glob("*.c"))
    return [name for name in defined if re.search(rf"^\s+{name}\(.*\);", calls, re.M)]


def ctest_names():
    names = []
    for file in (REPOSITORY / "tests").rglob("CMakeLists.txt"):
        names += re.findall(r"add_test\(\s*NAME ([\w.]+)", file.read_text())
    return names


@pytest.mark.parametrize("where, name", [t for t in TESTS if t[0] != "conformance"])
def test_a_named_test_exists(where, name):
    if where == "ctest":
        assert name in ctest_names()
        return
    path = REPOSITORY / where
    assert path.is_file()
    names = {".cpp": doctest_names, ".py": python_names, ".c": c_names}[path.suffix](path)
    assert name in names


@pytest.fixture(scope="module")
def conformance_cases():
    cli = Path(os.environ.get("PARISKV_CLI", REPOSITORY / "build" / "dev" / "bin" / "pariskv"))
    program = cli.with_name("pkv-conformance")
    if not program.is_file():
        pytest.skip(f"{program} is not built (PARISKV_CLI names its neighbour)")
    done = subprocess.run([program, "--list"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", [name for where, name in TESTS if where == "conformance"])
def test_a_named_conformance_case_exists(conformance_cases, name):
    assert fnmatch.filter(conformance_cases, name)


def test_every_case_has_an_id_a_sentence_and_a_test():
    assert len(ENTRIES) > 50
    for identifier, text, tests in ENTRIES:
        assert re.fullmatch(r"[a-z]+-\d\d", identifier), identifier
        assert text.endswith("."), identifier
        assert tests, identifier
        assert max(Counter(tests).values()) == 1, identifier
    assert max(Counter(identifier for identifier, _, _ in ENTRIES).values()) == 1


def test_ids_of_an_area_ascend_and_stand_together():
    areas = [identifier.partition("-")[0] for identifier, _, _ in ENTRIES]
    assert sum(a != b for a, b in zip(areas, areas[1:])) == len(set(areas)) - 1
    for area in set(areas):
        numbers = [i for i, _, _ in ENTRIES if i.startswith(area + "-")]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("path", sorted(HERE.glob("test_scenario_*.py")), ids=lambda p: p.stem)
def test_no_scenario_test_is_without_a_case(path):
    named = {name for where, name in TESTS if where == str(path.relative_to(REPOSITORY))}
    helpers = {"test_optional_pointers_are_parameters_of_their_functions"}
    tests = {name for name in python_names(path) if name.startswith("test_")}
    assert tests - helpers == named
