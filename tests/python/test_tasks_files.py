"""bench.tasks over local files of benchmarks: formats, judges, a dry run of each suite."""

import csv
import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: tools/test_python")
pytest.importorskip("transformers", reason="transformers is not installed: tools/test_python")
pytest.importorskip("tqdm", reason="tqdm is not installed: tools/test_python")
sys.path.append(str(Path(__file__).resolve().parents[2]))
SHAPE = "sink=16+local=32+interval=32+dense_below=64+page_tokens=64"
MATH = [{"problem": "What is 1 + 1?", "answer": "2"}, {"problem": "And 2 / 4?", "answer": "1/2"}]
CHOICES = {"question": "Which?", "answer": "B", "context": "Some text. " * 300,
           **{f"choice_{letter}": f"the {letter}" for letter in "ABCD"}}  # fmt: skip


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, tokenizer, model); the tokenizer has a chat template."""
    import tiny_model

    folder = tmp_path_factory.mktemp("tiny")
    return (str(folder), *tiny_model.make(folder, chat=True))


@pytest.fixture
def data(tmp_path):
    """Writes a made-up file; returns its path."""

    def write(name, rows):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".csv"):
            with path.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
        elif name.endswith(".json"):
            path.write_text(json.dumps(rows))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def run(tiny, suite, path, out, *arguments):
    from bench.tasks import __main__ as program

    methods = f"full,all+{SHAPE},default+{SHAPE}"
    given = {"suite": suite, "data": path, "model": tiny[0], "methods": methods, "new-tokens": 24}
    given = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    code = program.main([*given, "--keep-text", "--json", str(out), *map(str, arguments)])
    return code, json.loads(out.read_text()) if code == 0 else None


def test_every_suite_runs_and_all_rows_say_what_full_attention_says(tiny, pariskv, data, tmp_path):
    long = " ".join(f"The code of room {i} is {i * 7919}." for i in range(60))
    wrong = {f"Incorrect Answer {n}": f"wrong {n}" for n in (1, 2, 3)}
    ruler = [{"input": long * n + " What?", "outputs": ["7919"], "answer_prefix": " It is"}
             for n in (1, 2)]  # fmt: skip
    data("ruler/niah_single_1/validation.jsonl", ruler)
    data("ruler/qa_1/validation.jsonl", ruler)
    suites = {
        "ruler": (tmp_path / "ruler", 4),
        "longbench-v2": (data("lb.json", [{**CHOICES, "length": "long", "difficulty": "easy"}]), 1),
        "math500": (data("math.jsonl", MATH), 2),
        "aime25": (data("aime.jsonl", [{"question": "One?", "answer": 1}]), 1),
        "gpqa": (data("gpqa.csv", [{"Question": "Q?", "Correct Answer": "right", **wrong}]), 1),
    }
    for suite, (path, count) in suites.items():
        code, found = run(tiny, suite, path, tmp_path / f"{suite}.out", "--temperature", 0)
        assert code == 0 and len(found["results"]) == count, suite
        assert found["chat"] == (suite != "ruler")
        for row in found["results"]:
            full, every, _ = row["said"].values()
            assert full == every and len(full) == (8 if suite == "aime25" else 1), suite
            assert any(full)
    assert found["samples"] == 1


def test_rows_of_unequal_length_say_what_they_say_alone(tiny, pariskv, data, tmp_path):
    _, tokenizer, model = tiny
    texts = ["The quick brown fox. " * n for n in (20, 31, 57)]
    path = data("niah_x.jsonl", [{"input": text, "outputs": ["x"]} for text in texts])
    code, found = run(tiny, "ruler", path, tmp_path / "out.json")
    assert code == 0 and len(found["seconds"]) == 1, "one batch"
    for row, text in zip(found["results"], texts):
        ids = tokenizer(text, return_tensors="pt").input_ids
        out = model.generate(ids, max_new_tokens=24, do_sample=False)
        said = tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        full, every, _ = row["said"].values()
        assert full == every == [said]


def test_samples_differ_and_any_of_them_passes(tiny, pariskv, data, tmp_path, monkeypatch):
    from bench.tasks import local

    path = data("aime.jsonl", [{"problem": "One?", "answer": "1"}, {"problem": "2?", "answer": 2}])
    marks = iter([0, 0, 1, 0, 0, 0, 0, 0] * 3 + [0] * 24)
    monkeypatch.setattr(local, "judge", lambda *_: next(marks))
    code, found = run(tiny, "aime25", path, tmp_path / "out.json")
    assert code == 0 and found["samples"] == 8 and found["temperature"] == 0.6
    first, second = sorted(found["results"], key=lambda row: -max(row["scores"].values()))
    assert set(first["scores"].values()) == {1 / 8} and set(second["scores"].values()) == {0}
    assert set(first["passed"].values()) == {1}
    assert [row["score"]["mean"] for row in found["pass_at_8"]] == [0.5] * 3
    for texts in first["said"].values():
        assert len(texts) == 8 and len(set(texts)) > 1
    _, again = run(tiny, "aime25", path, tmp_path / "again.json", "--limit", 0)
    assert again["results"] == []


def test_long_texts_lose_their_middle(tiny):
    from bench.tasks import files, local

    item = files.Item("0", "t", "begin " + "x " * 500 + "end", " So:", ["a"], "share", 8)
    ids = local.tokens_of(item, tiny[1], chat=True, most=100)
    text = tiny[1].decode(ids)
    assert (
        len(ids) == 100 and text.startswith("<user>begin") and text.endswith("end<assistant> So:")
    )


def test_samples_come_from_the_likeliest():
    from bench.tasks.answers import greedy, sampler

    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]])).repeat(4000, 1)
    assert set(greedy(logits).flatten().tolist()) == {0}
    drawn = sampler(1.0, 0.75, torch.Generator().manual_seed(1))(logits).flatten()
    assert set(drawn.tolist()) == {0, 1}
    assert abs((drawn == 0).double().mean().item() - 0.625) < 0.03


def test_answers_are_judged():
    from bench.tasks.judges import judge, last_boxed

    assert last_boxed(r"so \boxed{1} or \boxed{\frac{1}{2}} done") == r"\frac{1}{2}"
    assert last_boxed(r"\boxed{1") is None and last_boxed("1") is None
    for said, wanted in (
        (r"\frac{1}{2}", "0.5"), (r"\dfrac12", r"\frac{1}{2}"), ("1,000", "1000"), ("x = 7.", "7"),
        (r"\left(3, \frac{\pi}{2}\right)", r"(3,\frac{\pi}{2})"), (r"5\text{ cm}", r"5\text{cm}"),
        ("070", "70"), (r"-\frac{3}{4}", "-3/4"), (r"90^\circ", "90"),
    ):  # fmt: skip
        assert judge("math", rf"It is \boxed{{{said}}}.", [wanted]) == 1, said
    for said, wanted in (("1/3", "1/2"), ("(1,2)", "12"), ("x^2", "x"), ("1/0", "0")):
        assert judge("math", rf"\boxed{{{said}}}", [wanted]) == 0, said
    assert judge("math", "7", ["7"]) == 0, "not boxed"
    assert judge("letter", "The correct answer is (A). No: the correct answer is (C)", ["C"]) == 1
    assert judge("letter", "The correct answer is Definitely", ["D"]) == 0
    assert judge("letter", "C", ["C"]) == 0
    assert judge("share", "The RIVER, and 17", ["river", "17", "sea", "4"]) == 0.5
    assert judge("any", "the river", ["sea", "river"]) == 1 and judge("any", "", ["sea"]) == 0


@pytest.mark.parametrize(
    "suite, name, rows, wanted",
    [
        ("math500", "a.jsonl", [MATH[0], {"problem": "x"}], r"a.jsonl: line 2: field 'answer'"),
        ("math500", "a.jsonl", [{"problem": ["x"], "answer": "1"}], "'problem' must be text"),
        ("aime25", "a.jsonl", [{"problem": "x", "answer": "1/2"}], "'answer' is '1/2'"),
        ("aime25", "a.jsonl", [{"answer": "1"}], "'problem' or 'question' is missing"),
        ("longbench-v2", "a.json", [{**CHOICES, "answer": "E"}], "record 1: field 'answer' is 'E'"),
        ("longbench-v2", "a.json", [{**CHOICES, "choice_C": ""}], "field 'choice_C'"),
        ("gpqa", "a.csv", [{"Question": "x", "Correct Answer": "y"}], "row 1: field 'Incorrect"),
        ("ruler", "vt.jsonl", [{"input": "x", "outputs": "y"}], "field 'outputs' must be a list"),
        ("ruler", "vt.jsonl", [{"outputs": ["y"]}], "field 'input' is missing"),
        ("ruler", "other.jsonl", [{"input": "x", "outputs": ["y"]}], "names begin with niah"),
        ("math500", "a.jsonl", [], "holds no records"),
        ("math500", "a.jsonl", [[1]], "not an object"),
    ],
)
def test_malformed_files_are_named_with_the_field(tiny, pariskv, data, capsys, suite, name, rows,
                                                  wanted):  # fmt: skip
    from bench.tasks import __main__ as program

    arguments = ["--suite", suite, "--model", tiny[0], "--data", str(data(name, rows))]
    assert program.main(arguments) == 3
    error = capsys.readouterr().err
    assert wanted in error and name in error


def test_missing_files_and_broken_ones(tiny, pariskv, tmp_path, capsys):
    from bench.tasks import __main__ as program

    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"problem": "x", "answer": "1"}\n{"problem": \n')
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes(b'{"problem": "\xe4"}')
    for path, wanted in (
        (tmp_path / "none.jsonl", "no such file"),
        (tmp_path, "a folder"),
        (broken, "line 2: not JSON"),
        (latin, "not UTF-8"),
    ):
        code = program.main(["--suite", "math500", "--model", tiny[0], "--data", str(path)])
        assert code == 3 and wanted in capsys.readouterr().err
    for arguments in (["--suite", "math500"], ["--data", str(broken)]):
        with pytest.raises(SystemExit):
            program.main(["--model", tiny[0], *arguments])
        assert "--data goes with" in capsys.readouterr().err
