#!/usr/bin/env python3
"""Cuts a trace of a model's keys, values and queries down to a shorter one, or measures a trace.

    python tools/cut_trace.py SOURCE TARGET --tokens 4096      # cut
    python tools/cut_trace.py SOURCE --measure                 # only check and measure

A trace is a safetensors file (data/traces/README.md has the schema). The cut keeps the first `sink`
keys and the last `tokens - sink` keys, and moves `q_pos` down by the number of keys between them.
Keys carry their rotary position already, so attention over the kept keys is an ordinary softmax of
the stored tensors and stays causal: a query sees keys 0..q_pos. It is no longer what the model
itself would compute, because the keys in between no longer take their share of the mass.

The file written depends on the source and the arguments only, byte for byte (the safetensors
package orders metadata at random, so the header is written here). Needs numpy and safetensors.
Exit codes: 0 done, 2 usage, 3 bad input, 5 system failure.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FLOAT_TENSORS = ("k", "v", "q")
REQUIRED_METADATA = ("scale", "kv_heads", "n_prompt", "layer", "model")
SUBSPACE = 8  # coordinates that share one sign pattern; docs/algorithm.md
DTYPE_NAMES = {"float16": "F16", "int64": "I64"}


class TraceError(ValueError):
    """A trace or an argument is not usable; the text names the value and the allowed range."""


@dataclass
class Trace:
    """One layer of one model. All arrays are C-contiguous; `h` KV heads share `hq` query heads."""

    k: np.ndarray  # [h, n, d] float16, after RoPE
    v: np.ndarray  # [h, n, d] float16
    q: np.ndarray  # [nq, hq, d] float16, after RoPE; heads i*hq/h .. belong to KV head i
    q_pos: np.ndarray  # [nq] int64, ascending; query i sees keys 0..q_pos[i]
    metadata: dict[str, str]

    @property
    def tokens(self) -> int:
        """Number of keys per KV head."""
        return self.k.shape[1]

    @property
    def kv_heads(self) -> list[int]:
        """The model's numbers of the stored KV heads, in the order of axis 0 of `k`."""
        return json.loads(self.metadata["kv_heads"])


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise TraceError(text)


def _integer(metadata: dict[str, str], key: str, low: int, high: int | None, name: str) -> int:
    text = metadata[key]
    limit = f"{low}.." + ("" if high is None else str(high))
    try:
        value = int(text)
    except ValueError:
        raise TraceError(f"{name}: metadata {key}={text!r} is not an integer in {limit}") from None
    in_range = low <= value and (high is None or value <= high)
    _require(in_range, f"{name}: metadata {key}={value} outside {limit}")
    return value


def check_metadata(metadata: dict[str, str], kv_heads: int, tokens: int, name: str) -> None:
    """Raises TraceError unless the metadata fits `kv_heads` KV heads with `tokens` keys each."""
    missing = [key for key in REQUIRED_METADATA if key not in metadata]
    _require(not missing, f"{name}: metadata lacks {', '.join(missing)}")
    try:
        scale = float(metadata["scale"])
    except ValueError:
        scale = math.nan
    usable = math.isfinite(scale) and scale > 0
    _require(usable, f"{name}: metadata scale={metadata['scale']!r} is not a positive number")
    _integer(metadata, "layer", 0, None, name)
    _integer(metadata, "n_prompt", 0, tokens, name)
    text = metadata["kv_heads"]
    try:
        heads = json.loads(text)
    except ValueError:
        heads = None
    is_list = isinstance(heads, list) and all(type(head) is int and head >= 0 for head in heads)
    _require(is_list, f"{name}: metadata kv_heads={text!r} is not a list of numbers >= 0")
    fits = len(heads) == kv_heads and len(set(heads)) == kv_heads
    _require(fits, f"{name}: metadata kv_heads={text}: k has {kv_heads} distinct KV heads")


def check_trace(trace: Trace, name: str) -> None:
    """Raises TraceError unless shapes, dtypes, values, positions and metadata fit the schema."""
    k, v, q, q_pos = trace.k, trace.v, trace.q, trace.q_pos
    for key, tensor in (("k", k), ("v", v), ("q", q)):
        found = f"{name}: {key} has dtype {tensor.dtype} and shape {list(tensor.shape)}"
        fits = tensor.dtype == np.float16 and tensor.ndim == 3
        _require(fits, f"{found}, needed: float16, 3 axes")
        _require(tensor.size > 0, f"{found}: it is empty")
        bad = int(tensor.size - np.count_nonzero(np.isfinite(tensor)))
        _require(bad == 0, f"{name}: {key} holds {bad} values that are not finite")
    _require(v.shape == k.shape, f"{name}: v has shape {list(v.shape)}, k {list(k.shape)}")
    _require(q.shape[2] == k.shape[2], f"{name}: q has head_dim {q.shape[2]}, k {k.shape[2]}")
    heads = f"{name}: q has {q.shape[1]} query heads, k {k.shape[0]} KV heads"
    _require(q.shape[1] % k.shape[0] == 0, f"{heads}: not a multiple")
    found = f"{name}: q_pos has dtype {q_pos.dtype} and shape {list(q_pos.shape)}"
    fits = q_pos.dtype == np.int64 and q_pos.shape == q.shape[:1]
    _require(fits, f"{found}, needed: int64, [{q.shape[0]}]")
    low, high = int(q_pos.min()), int(q_pos.max())
    fits = low >= 0 and high < k.shape[1]
    _require(fits, f"{name}: q_pos {low}..{high} outside 0..{k.shape[1] - 1}")
    _require(bool(np.all(np.diff(q_pos) > 0)), f"{name}: q_pos is not strictly ascending")
    check_metadata(trace.metadata, k.shape[0], k.shape[1], name)


def read_trace(path: Path) -> Trace:
    """Reads and checks a trace. Raises TraceError, or OSError where the file cannot be read."""
    from safetensors import SafetensorError, safe_open

    with open(path, "rb"):  # the package's own error does not name the file
        pass
    try:
        with safe_open(path, framework="numpy") as file:
            present = set(file.keys())
            missing = [key for key in (*FLOAT_TENSORS, "q_pos") if key not in present]
            _require(not missing, f"{path.name}: lacks the tensors {', '.join(missing)}")
            tensors = {key: file.get_tensor(key) for key in (*FLOAT_TENSORS, "q_pos")}
            metadata = dict(file.metadata() or {})
    except (SafetensorError, TypeError, AttributeError) as error:
        raise TraceError(f"{path.name}: not a readable safetensors file: {error}") from error
    trace = Trace(**tensors, metadata=metadata)
    check_trace(trace, path.name)
    return trace


def serialize(trace: Trace) -> bytes:
    """The bytes of a safetensors file: header with sorted metadata, then q_pos, k, q, v."""
    header: dict[str, object] = {"__metadata__": dict(sorted(trace.metadata.items()))}
    parts, offset = [], 0
    for key in ("q_pos", "k", "q", "v"):
        tensor = np.ascontiguousarray(getattr(trace, key))
        raw = tensor.astype(tensor.dtype.newbyteorder("<"), copy=False).tobytes()
        header[key] = {
            "dtype": DTYPE_NAMES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(raw)],
        }
        offset += len(raw)
        parts.append(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start on a multiple of 8 bytes
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


def write_trace(path: Path, trace: Trace, *, force: bool = False) -> None:
    """Checks `trace` and writes it under a temporary name beside `path`, then renames it."""
    check_trace(trace, path.name)
    _require(force or not path.exists(), f"{path} exists; --force overwrites it")
    _require(path.parent.is_dir(), f"{path}: its folder does not exist")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(serialize(trace))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def cut(trace: Trace, tokens: int, sink: int, kv_heads: list[int] | None, name: str) -> Trace:
    """The trace of keys 0..sink-1 and the last tokens - sink keys, for the KV heads named.

    Queries at dropped positions are dropped too; `kv_heads` are the model's numbers, None for all.
    """
    n = trace.tokens
    _require(0 <= sink < n, f"{name}: --sink {sink} outside 0..{n - 1}")
    _require(sink < tokens <= n, f"{name}: --tokens {tokens} outside {sink + 1}..{n}")
    removed = n - tokens
    start = sink + removed  # first kept position after the sink
    rows = list(range(len(trace.kv_heads)))
    if kv_heads is not None:
        unknown = [head for head in kv_heads if head not in trace.kv_heads]
        _require(not unknown, f"{name}: --kv-heads {unknown} not among {trace.kv_heads}")
        _require(len(set(kv_heads)) == len(kv_heads), f"{name}: --kv-heads {kv_heads} repeats one")
        rows = [trace.kv_heads.index(head) for head in kv_heads]
    kept = trace.q_pos >= start
    last = int(trace.q_pos[-1])
    some = f"{name}: no query is at or after position {start}, the last is at {last}"
    _require(bool(kept.any()), f"{some}; --tokens must be at least {sink + n - last}")
    group = trace.q.shape[1] // trace.k.shape[0]
    columns = [row * group + i for row in rows for i in range(group)]
    positions = np.r_[0:sink, start:n]
    metadata = dict(trace.metadata)
    metadata["kv_heads"] = json.dumps([trace.kv_heads[row] for row in rows])
    metadata["n_prompt"] = str(int(np.count_nonzero(positions < int(metadata["n_prompt"]))))
    if removed:
        metadata["cut"] = f"keys 0..{sink - 1} and {start}..{n - 1} of 0..{n - 1}"
    return Trace(
        k=np.ascontiguousarray(trace.k[rows][:, positions]),
        v=np.ascontiguousarray(trace.v[rows][:, positions]),
        q=np.ascontiguousarray(trace.q[kept][:, columns]),
        q_pos=trace.q_pos[kept] - removed,
        metadata=metadata,
    )


def mean_cosine(k: np.ndarray) -> float:
    """Mean cosine over all pairs of distinct keys of one KV head; k [n, d], n >= 2."""
    unit = k / np.maximum(np.linalg.norm(k, axis=1, keepdims=True), 1e-30)
    total = unit.sum(axis=0, dtype=np.float64)
    n = len(k)
    return float((total @ total - n) / (n * (n - 1)))


def pattern_bits(k: np.ndarray) -> float:
    """Mean entropy, in bits, of the sign patterns of 8 rotated coordinates; k [n, d].

    8 is a uniform spread over the 256 patterns; 0 means that all keys look alike to the votes.
    """
    n, d = k.shape
    rotation, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((d, d)))
    signs = (k @ rotation > 0)[:, : d - d % SUBSPACE].reshape(n, -1, SUBSPACE)
    bits = []
    for s in range(signs.shape[1]):
        ids = np.packbits(signs[:, s], axis=1)[:, 0]
        share = np.bincount(ids, minlength=256) / n
        share = share[share > 0]
        bits.append(-(share * np.log2(share)).sum())
    return float(np.mean(bits))


def measure(trace: Trace, sink: int, local: int, k: int) -> dict[str, object]:
    """What makes a trace easy or hard; means over queries, query heads and KV heads.

    zone_mass: share of the attention on keys after the sink and before the last `local` keys.
    error: relative L2 error of the output when attention sees only sink, local window and the
    exact top-k of the zone (largest mean score over the group), as a fraction.
    """
    first, last = int(trace.q_pos[0]), int(trace.q_pos[-1])
    least = sink + local + k
    enough = first + 1 >= least
    _require(enough, f"the first query sees {first + 1} keys, --sink + --local + --k is {least}")
    scale = float(trace.metadata["scale"])
    group = trace.q.shape[1] // trace.k.shape[0]
    mass, error = [], []
    for h in range(trace.k.shape[0]):
        keys, values = (t[h].astype(np.float32) for t in (trace.k, trace.v))
        queries = trace.q[:, h * group : (h + 1) * group].astype(np.float32)
        for i, position in enumerate(trace.q_pos):
            seen = int(position) + 1
            score = scale * (queries[i] @ keys[:seen].T)  # [group, seen]
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            weight /= weight.sum(axis=1, keepdims=True)
            mass.append(weight[:, sink : seen - local].sum(axis=1))
            best = np.argsort(-score[:, sink : seen - local].mean(axis=0), kind="stable")[:k]
            kept = np.r_[0:sink, sink + best, seen - local : seen]
            full = weight @ values[:seen]
            part = weight[:, kept] @ values[kept] / weight[:, kept].sum(axis=1, keepdims=True)
            error.append(np.linalg.norm(part - full, axis=1) / np.linalg.norm(full, axis=1))
    zone = [t.astype(np.float32)[sink : last + 1 - local] for t in trace.k]
    return {
        "kv_heads": trace.kv_heads,
        "tokens": trace.tokens,
        "zone": [first + 1 - sink - local, last + 1 - sink - local],
        "queries": len(trace.q_pos),
        "group": group,
        "head_dim": trace.k.shape[2],
        "key_norm_max": round(float(max(np.linalg.norm(z, axis=1).max() for z in zone)), 1),
        "key_cosine": round(float(np.mean([mean_cosine(z) for z in zone])), 4),
        "pattern_bits": round(float(np.mean([pattern_bits(z) for z in zone])), 2),
        "pattern_bits_centred": round(
            float(np.mean([pattern_bits(z - z.mean(axis=0)) for z in zone])), 2
        ),
        "zone_mass": round(float(np.mean(mass)), 4),
        "error": round(float(np.mean(error)), 4),
    }


def parse_heads(text: str) -> list[int]:
    """`0,2` -> [0, 2]; an argparse type."""
    try:
        heads = [int(part) for part in text.split(",")]
    except ValueError:
        heads = [-1]
    if min(heads) < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers >= 0 such as 0,2")
    return heads


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description="Cuts a trace to its first --sink and its last keys, or measures one."
    )
    parser.add_argument("source", type=Path, help="trace to read")
    parser.add_argument("target", type=Path, nargs="?", help="trace to write; left out: none")
    parser.add_argument("--tokens", type=int, help="keys to keep, the sink included")
    parser.add_argument("--sink", type=int, default=128, help="first keys, always kept (128)")
    parser.add_argument("--kv-heads", type=parse_heads, help="KV heads to keep: 0,2 (all)")
    parser.add_argument("--force", action="store_true", help="overwrite TARGET")
    parser.add_argument("--measure", action="store_true", help="print the figures of the result")
    parser.add_argument("--local", type=int, default=512, help="--measure: newest keys (512)")
    parser.add_argument("--k", type=int, default=100, help="--measure: keys kept of the zone (100)")
    options = parser.parse_args(arguments)
    is_cut = options.tokens is not None or options.kv_heads is not None
    if options.target is not None and not is_cut:
        parser.error("TARGET needs --tokens or --kv-heads")
    if options.target is None and not options.measure:
        parser.error("nothing to do: name a TARGET, or ask for --measure")
    if options.local < 1 or options.k < 1:
        parser.error(f"--local {options.local} and --k {options.k} must be at least 1")
    try:
        trace = read_trace(options.source)
        if is_cut:
            tokens = trace.tokens if options.tokens is None else options.tokens
            trace = cut(trace, tokens, options.sink, options.kv_heads, options.source.name)
        if options.target is not None:
            write_trace(options.target, trace, force=options.force)
        if options.measure:
            name = (options.target or options.source).name
            figures = measure(trace, options.sink, options.local, options.k)
            print(json.dumps({"trace": name, **figures}))
    except TraceError as error:
        print(f"cut_trace: {error}", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"cut_trace: {error}", file=sys.stderr)
        return 3 if isinstance(error, FileNotFoundError) else 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
