"""Writers of the input files, good and bad, that the tests of the command line read."""

import json
import math
import struct

import numpy as np

SAFETENSORS_NAMES = {
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "int64": "I64",
    "int32": "I32",
    "uint8": "U8",
    "int8": "I8",
}


def safetensors_bytes(tensors, metadata=None, edit=None):
    """The file of `tensors`, name -> array; `edit` may change the header before it is written."""
    header, data = {}, b""
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": SAFETENSORS_NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    if edit is not None:
        edit(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def fvecs_bytes(rows):
    """Records of a dimension and that many numbers; f32 rows make .fvecs, u8 rows .bvecs."""
    return b"".join(struct.pack("<i", len(row)) + row.tobytes() for row in rows)


def npy_bytes(descr, shape, data, version=1, order="False"):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape!r}, }}\n"
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + data


def make_trace(seed=1, kv_heads=2, group=3, n=900, d=16, dv=None, queries=12, dtype=np.float16):
    """Tensors and metadata of a trace with keys that are worth looking for."""
    rng = np.random.default_rng(seed)
    dv = d if dv is None else dv
    positions = np.sort(rng.choice(np.arange(n // 2, n), size=queries, replace=False))
    tensors = {
        "k": (rng.normal(size=(kv_heads, n, d)) + 0.5).astype(dtype),
        "v": rng.normal(size=(kv_heads, n, dv)).astype(dtype),
        "q": (2 * rng.normal(size=(queries, kv_heads * group, d))).astype(dtype),
        "q_pos": positions.astype(np.int64),
    }
    metadata = {
        "scale": repr(1 / math.sqrt(d)),
        "kv_heads": json.dumps(list(range(3, 3 + kv_heads))),
        "n_prompt": str(n // 2),
        "layer": "0",
        "model": "made up",
    }
    return tensors, metadata


def write_trace(path, **kwargs):
    tensors, metadata = make_trace(**kwargs)
    path.write_bytes(safetensors_bytes(tensors, metadata))
    return tensors, metadata
