"""Traces (docs/cli.md, section 5): the safetensors container and its checks, by numpy alone."""

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MAX_HEADER = 16 << 20
MAX_GROUP = 128
INTEGERS = {"I64": "<i8", "I32": "<i4"}
FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}


class TraceError(ValueError):
    """The text names file, field, value and what is accepted."""


@dataclass
class Trace:
    """One layer, decoded causally. Query heads i * group .. belong to KV head i."""

    name: str
    keys: np.ndarray  # [h, n, d] f16 or f32
    values: np.ndarray  # [h, n, dv]
    queries: np.ndarray  # [m, hq, d]
    positions: np.ndarray  # [m] int64; query i sees keys 0..positions[i]
    scale: str  # of the softmax, a plain decimal
    kv_labels: list  # [h] the model's numbers of the KV heads
    layer: "str | None"
    row_bytes: tuple  # of a stored key, of a stored value

    @property
    def kv_heads(self):
        return self.keys.shape[0]

    @property
    def group(self):
        return self.queries.shape[1] // self.kv_heads


def require(condition, text):
    if not condition:
        raise TraceError(text)


def read_header(path, raw):
    require(len(raw) >= 8, f"{path}: header: {len(raw)} bytes, accepted: a safetensors file")
    length = int.from_bytes(raw[:8], "little")
    require(
        length <= min(MAX_HEADER, len(raw) - 8),
        f"{path}: header: a length of {length}, the file has {len(raw)} bytes",
    )
    try:
        header = json.loads(raw[8 : 8 + length])
    except ValueError as error:
        raise TraceError(f"{path}: header: not JSON: {error}") from None
    require(isinstance(header, dict), f"{path}: header: accepted is a JSON object")
    return header, raw[8 + length :]


def read_tensor(path, header, body, name, kinds, axes):
    entry = header.get(name)
    require(isinstance(entry, dict), f"{path}: tensor {name}: missing")
    kind, shape, span = (entry.get(field) for field in ("dtype", "shape", "data_offsets"))
    require(kind in kinds, f"{path}: tensor {name}: dtype {kind}, accepted: {', '.join(kinds)}")

    def whole(numbers, count):
        good = isinstance(numbers, list) and len(numbers) == count
        return good and all(type(number) is int and number >= 0 for number in numbers)

    require(whole(shape, axes), f"{path}: tensor {name}: shape {shape}, accepted: {axes} axes")
    require(math.prod(shape) > 0, f"{path}: tensor {name}: shape {shape} is empty")
    dtype = np.dtype(kinds[kind])
    size = math.prod(shape) * dtype.itemsize
    good = whole(span, 2) and span[1] - span[0] == size and span[1] <= len(body)
    require(
        good, f"{path}: tensor {name}: data_offsets {span}, needed are {size} bytes in the file"
    )
    return np.frombuffer(body[span[0] : span[1]], dtype).reshape(shape), kind


def read_floats(path, header, body, name):
    """(f16 or f32 array, bytes of one stored element)."""
    array, kind = read_tensor(path, header, body, name, FLOATS, 3)
    if kind == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    elif kind == "F64":
        array = array.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(array))
    require(
        not len(bad),
        f"{path}: tensor {name}: element {bad[0] if len(bad) else 0} is not finite",
    )
    return array, {"F64": 4}.get(kind, np.dtype(FLOATS[kind]).itemsize)


def read_scale(path, metadata, head_dim):
    text = metadata.get("scale", repr(1 / math.sqrt(head_dim)))
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    require(
        0 < value <= 1e6,
        f"{path}: metadata scale={text!r}: accepted is a number above 0, at most 1e6",
    )
    return text


def read_labels(path, metadata, heads):
    text = metadata.get("kv_heads", json.dumps(list(range(heads))))
    try:
        labels = json.loads(text)
    except (TypeError, ValueError):
        labels = None
    good = isinstance(labels, list) and len(labels) == heads
    require(
        good and all(type(label) is int for label in labels),
        f"{path}: metadata kv_heads={text!r}: accepted is a JSON list of {heads} whole numbers",
    )
    return labels


def paths_of(name):
    """The trace of this name, or those of a folder."""
    if not Path(name).is_dir():
        return [name]
    found = sorted(map(str, Path(name).glob("*.safetensors")))
    require(found, f"{name}: no trace, accepted: a folder of .safetensors files")
    return found


def load(path):
    path = Path(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    header, body = read_header(path, raw)
    metadata = header.get("__metadata__", {})
    require(isinstance(metadata, dict), f"{path}: __metadata__: accepted is a JSON object")
    keys, key_item = read_floats(path, header, body, "k")
    values, value_item = read_floats(path, header, body, "v")
    queries, _ = read_floats(path, header, body, "q")
    positions, _ = read_tensor(path, header, body, "q_pos", INTEGERS, 1)
    heads, tokens, width = keys.shape
    require(
        values.shape[:2] == (heads, tokens),
        f"{path}: tensor v: shape {list(values.shape)}, accepted: [{heads}, {tokens}, dv] as in k",
    )
    require(queries.shape[2] == width, f"{path}: tensor q: d={queries.shape[2]}, accepted: {width}")
    groups = queries.shape[1] / heads
    require(
        groups.is_integer() and groups <= MAX_GROUP,
        f"{path}: tensor q: {queries.shape[1]} query heads, accepted: multiples of {heads}",
    )
    require(
        positions.shape == queries.shape[:1],
        f"{path}: tensor q_pos: shape {list(positions.shape)}, accepted: [{queries.shape[0]}]",
    )
    bad = np.flatnonzero((positions < 0) | (positions >= tokens))
    require(
        not len(bad),
        f"{path}: q_pos[{bad[0] if len(bad) else 0}] is outside 0..{tokens - 1}, the keys",
    )
    return Trace(
        name=path.stem,
        keys=keys,
        values=values,
        queries=queries,
        positions=positions.astype(np.int64),
        scale=read_scale(path, metadata, width),
        kv_labels=read_labels(path, metadata, heads),
        layer=metadata.get("layer"),
        row_bytes=(width * key_item, values.shape[2] * value_item),
    )
