"""Local files of published benchmarks, as they are distributed, and their prompts.

ruler         FOLDER or FILE: TASK.jsonl or TASK/validation.jsonl with input, outputs
              (and answer_prefix), as RULER's generator writes them
longbench-v2  data.json (a list) or .jsonl: _id, question, choice_A .. choice_D, answer, context
math500       .jsonl: problem, answer
aime25        .jsonl: problem or question, answer
gpqa          .csv: Question, Correct Answer, Incorrect Answer 1 .. 3"""

import csv
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

RULER_TOKENS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}


class DataError(ValueError):
    """A file of a benchmark that is missing, or not as it should be."""


@dataclass(frozen=True)
class Item:
    """One question; `kind` says how answers are judged (judges.py)."""

    name: str
    task: str
    text: str
    prefix: str  # of the answer, behind the chat template
    references: list
    kind: str
    new_tokens: int
    labels: dict = field(default_factory=dict)


def records(path):
    """[(place, dict)] of a .jsonl, .json or .csv file; place is for messages."""
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        if path.suffix == ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                found = [
                    (f"{path}: row {i + 1}", row) for i, row in enumerate(csv.DictReader(file))
                ]
        else:
            found = list(json_records(path))
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error})") from None
    if not found:
        raise DataError(f"{path}: holds no records")
    for place, row in found:
        if not isinstance(row, dict):
            raise DataError(f"{place}: not an object but {type(row).__name__}")
    return found


def json_records(path):
    text = path.read_text(encoding="utf-8")
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path}: not JSON: {error}") from None
        yield from ((f"{path}: record {i + 1}", row) for i, row in enumerate(rows))
        return
    for i, line in enumerate(text.splitlines()):
        if line.strip():
            try:
                yield f"{path}: line {i + 1}", json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}: line {i + 1}: not JSON: {error}") from None


def text_of(place, row, *names):
    """The first of the fields that is there, as text."""
    for name in names:
        value = row.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value
        if value is not None:
            raise DataError(f"{place}: field {name!r} must be text, not {value!r:.40}")
    raise DataError(f"{place}: field {' or '.join(map(repr, names))} is missing")


def ruler(path, seed):
    paths = sorted([*path.glob("*.jsonl"), *path.glob("*/validation.jsonl")])
    if path.is_dir() and not paths:
        raise DataError(f"{path}: no TASK.jsonl and no TASK/validation.jsonl in this folder")
    for one in paths or [path]:
        task = one.parent.name if one.stem == "validation" else one.stem
        known = [name for name in RULER_TOKENS if task.startswith(name)]
        if not known:
            raise DataError(f"{one}: task {task!r}; names begin with {', '.join(RULER_TOKENS)}")
        for i, (place, row) in enumerate(records(one)):
            outputs = row.get("outputs")
            if not isinstance(outputs, list) or not outputs:
                raise DataError(f"{place}: field 'outputs' must be a list of texts")
            if not all(isinstance(output, str) and output for output in outputs):
                raise DataError(f"{place}: field 'outputs' holds what is no text")
            prefix = row.get("answer_prefix") or ""
            text = text_of(place, row, "input")
            text = text[: -len(prefix)] if prefix and text.endswith(prefix) else text
            kind = "any" if known[0] == "qa" else "share"
            new_tokens = RULER_TOKENS[known[0]]
            yield Item(f"{task}/{i}", task, text, prefix, outputs, kind, new_tokens)


LONGBENCH = """Please read the following text and answer the question below.

<text>
{context}
</text>

What is the correct answer to this question: {question}
Choices:
(A) {A}
(B) {B}
(C) {C}
(D) {D}

Format your response as follows: "The correct answer is (insert answer here)"."""


def longbench(path, seed):
    for i, (place, row) in enumerate(records(path)):
        parts = {letter: text_of(place, row, f"choice_{letter}") for letter in "ABCD"}
        answer = text_of(place, row, "answer")
        if answer not in parts:
            raise DataError(f"{place}: field 'answer' is {answer!r}; must be A, B, C or D")
        text = LONGBENCH.format(
            context=text_of(place, row, "context"),
            question=text_of(place, row, "question"),
            **parts,
        )
        labels = {n: row[n] for n in ("difficulty", "length", "domain") if row.get(n)}
        name = str(row.get("_id", i))
        yield Item(name, "longbench-v2", text, "", [answer], "letter", 128, labels)


BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def math500(path, seed):
    for i, (place, row) in enumerate(records(path)):
        text, answer = text_of(place, row, "problem"), text_of(place, row, "answer")
        labels = {n: row[n] for n in ("level", "subject") if row.get(n)}
        name = str(row.get("unique_id", i))
        yield Item(name, "math500", text + BOXED, "", [answer], "math", 8192, labels)


def aime25(path, seed):
    for i, (place, row) in enumerate(records(path)):
        answer = text_of(place, row, "answer").strip()
        if not answer.isdigit() or not 0 <= int(answer) <= 999:
            raise DataError(f"{place}: field 'answer' is {answer!r}; must be 0 to 999")
        text = text_of(place, row, "problem", "question") + BOXED
        yield Item(str(row.get("id", i)), "aime25", text, "", [answer], "math", 32768)


GPQA = """Answer the following multiple choice question. The last line of your response should be \
of the form "The correct answer is (LETTER)". Think step by step before answering.

{question}

(A) {A}
(B) {B}
(C) {C}
(D) {D}"""


def gpqa(path, seed):
    for i, (place, row) in enumerate(records(path)):
        right = text_of(place, row, "Correct Answer").strip()
        choices = [text_of(place, row, f"Incorrect Answer {n}").strip() for n in (1, 2, 3)]
        at = random.Random(f"{seed} {i}").randrange(4)
        random.Random(f"{i} {seed}").shuffle(choices)
        choices.insert(at, right)
        question = text_of(place, row, "Question").strip()
        text = GPQA.format(question=question, **dict(zip("ABCD", choices)))
        yield Item(str(i), "gpqa", text, "", ["ABCD"[at]], "letter", 16384)


SUITES = {
    "ruler": ruler,
    "longbench-v2": longbench,
    "math500": math500,
    "aime25": aime25,
    "gpqa": gpqa,
}


def load(suite, path, seed):
    path = Path(path)
    if not path.exists():
        raise DataError(f"{path}: no such file or folder")
    if path.is_dir() and suite != "ruler":
        raise DataError(f"{path}: a folder; --suite {suite} wants a file")
    return list(SUITES[suite](path, seed))
