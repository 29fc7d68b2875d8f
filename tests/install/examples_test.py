#!/usr/bin/env python3
"""examples_test.py --build BUILD --prefix PREFIX --work FOLDER

The embedding examples, built outside the tree from the copy installed in PREFIX. Each encodes a
trace of data/traces, and must do what the command line does: the same bytes of the index, the same
hits with the same scores. Their outputs are those of each other, and close to full attention.
"""

import json
import math
import os
import re
import struct
import sys

from outside import EXAMPLES, REPOSITORY, from_command_line, run

TRACES = ("smollm2-135m_l15_n3328", "qwen2.5-coder-1.5b_l13_n4096")
QUERIES = 8  # as the examples have it


def float_of(word):
    return struct.unpack("<f", struct.pack("<I", int(word, 16)))[0]


def read_trace(path):
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])

    def tensor(name):
        begin, end = (8 + length + at for at in header[name]["data_offsets"])
        return struct.unpack(f"<{(end - begin) // 2}e", data[begin:end]), header[name]["shape"]

    return tensor("k"), tensor("v"), tensor("q")


def full_attention(trace, i):
    """Of query i with every key, all heads, in double; one KV head."""
    (k, (_, n, d)), (v, (_, _, dv)), (q, (_, heads, _)) = trace
    output = []
    for g in range(heads):
        query = q[(i * heads + g) * d : (i * heads + g + 1) * d]
        logits = [
            sum(map(float.__mul__, query, k[t * d : (t + 1) * d])) / math.sqrt(d) for t in range(n)
        ]
        top = max(logits)
        weights = [math.exp(logit - top) for logit in logits]
        output += [
            math.fsum(map(float.__mul__, weights, v[j::dv])) / sum(weights) for j in range(dv)
        ]
    return output


def cosine(a, b):
    dot = math.fsum(map(float.__mul__, a, b))
    return dot / math.sqrt(math.fsum(x * x for x in a) * math.fsum(x * x for x in b))


def commands_of(outside):
    """{language: the command of its example}"""
    sources = outside.copy(EXAMPLES)
    built = outside.cmake(sources)
    commands = {
        "c": [built / "embed_c"],
        "cpp": [built / "embed_cpp"],
        "python": [sys.executable, sources / "python" / "embed.py"],
    }
    target = outside.cargo(sources / "rust")
    if target is not None:
        commands["rust"] = [target / "embed"]
    return commands


def outputs_of(outside, commands, trace):
    """{language: (bytes of its index, what it printed)}"""
    environment = {"PATH": os.environ["PATH"], "PARISKV_LIBRARY": str(outside.library)}
    results = {}
    for language, command in commands.items():
        index = outside.work / f"{language}.pkv"
        text = run(*command, trace, index, env=environment, cwd=outside.work)
        results[language] = (index.read_bytes(), text)
        index.unlink()
    return results


def by_command_line(outside, trace):
    """(bytes of the index, [[(position, score), ..] per query])"""
    cli, index = outside.program("pariskv"), outside.work / "cli.pkv"
    index.unlink(missing_ok=True)
    run(cli, "encode", trace, "--tensor", "k", "--values", f"{trace}:v", "--queries", f"{trace}:q",
        "--fit-queries", 128, "--output", index, "--backend", "cpu")  # fmt: skip
    text = run(cli, "retrieve", index, f"{trace}:q", "--json", "--backend", "cpu")
    rows = json.loads(text)["results"][:QUERIES]
    return index.read_bytes(), [list(zip(row["positions"], row["scores"])) for row in rows]


def check(outside, commands, name):
    trace = REPOSITORY / "data" / "traces" / f"{name}.safetensors"
    index, hits = by_command_line(outside, trace)
    results = outputs_of(outside, commands, trace)
    for language, (own_index, text) in results.items():
        assert own_index == index, f"{language}: another index than the command line's"
        assert text == results["c"][1], f"{language} differs from c"
    lines = [line.split() for line in results["c"][1].splitlines()]
    found = [
        [(int(at), float_of(score)) for at, score in (word.split(":") for word in words)]
        for kind, *words in lines
        if kind == "hits"
    ]
    assert found == hits and len(found) == QUERIES and all(len(row) == 100 for row in found)
    outputs = [[float_of(word) for word in words] for kind, *words in lines if kind == "output"]
    # A step leaves out what carries little weight: near full attention, but not the same.
    likeness = cosine(outputs[0], full_attention(read_trace(trace), 0))
    assert likeness > 0.9, likeness
    print(f"{name}: {', '.join(results)} agree; cosine to full attention {likeness:.4f}")


def check_pages(outside):
    """The programs that stand in the documentation build and run as they stand there."""
    flags = dict(os.environ, PKG_CONFIG_PATH=str(outside.library.parent / "pkgconfig"))
    options = run("pkg-config", "--cflags", "--libs", "pariskv", env=flags).split()
    for page in ("embedding", "pages"):
        program = re.search(r"```c\n(.*?)```", (REPOSITORY / f"docs/{page}.md").read_text(), re.S)[
            1
        ]
        source, target = outside.work / f"{page}.c", outside.work / page
        source.write_text(program)
        run(
            os.environ.get("CC", "cc"),
            "-std=c99",
            "-Wall",
            "-Werror",
            source,
            "-o",
            target,
            *options,
        )
        text = run(target, env={"LD_LIBRARY_PATH": str(outside.library.parent)})
        assert math.isfinite(float(text)) and float(text) != 0, text
        print(f"docs/{page}.md: {text.strip()}")


def main():
    outside, _ = from_command_line()
    commands = commands_of(outside)
    for name in TRACES:
        check(outside, commands, name)
    check_pages(outside)
    for language, command in commands.items():
        for arguments in (["gone.safetensors", "x.pkv"], []):
            try:
                run(*command, *arguments, env={"PARISKV_LIBRARY": str(outside.library)})
            except AssertionError as error:
                text = str(error)
                assert ("gone.safetensors" if arguments else "usage: ") in text, text
                assert "Traceback" not in text and "panicked" not in text, text
            else:
                raise AssertionError(f"{language}: takes {arguments}")


if __name__ == "__main__":
    main()
