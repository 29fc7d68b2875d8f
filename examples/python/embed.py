#!/usr/bin/env python3
"""pariskv from Python with ctypes alone: embed.py TRACE INDEX.

What c/embed.c does. PARISKV_LIBRARY names libpariskv.so where the loader does not find it.
"""

import ctypes
import json
import os
import struct
import sys
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int32,
    c_int64,
    c_uint32,
    c_uint64,
    c_void_p,
)

CPU, F32, F16 = 1, 1, 3
QUERIES = 8
HITS = 100  # the default of the option k


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
        ("dtype", c_int32), ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]  # fmt: skip


class PlanDesc(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32), ("batch", c_int32), ("query_heads", c_int32),
        ("owns_scratch", c_int32), ("sequences", c_void_p), ("max_tokens", c_int64),
    ]  # fmt: skip


class Hits(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32), ("flags", c_uint32), ("positions", c_void_p),
        ("scores", c_void_p), ("counts", c_void_p), ("candidates", c_void_p),
        ("candidate_counts", c_void_p), ("estimates", c_void_p), ("rest_lse", c_void_p),
        ("sample_estimates", c_void_p),
    ]  # fmt: skip


class Rows(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32), ("reserved", c_int32), ("keys", Tensor), ("values", Tensor)
    ]  # fmt: skip


class Dense(ctypes.Structure):
    _fields_ = [("rows", Rows), ("lengths", c_void_p)]


class Step(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_uint32), ("dense_count", c_int32), ("query", Tensor),
        ("dense", Dense * 4), ("source", Rows), ("hits", POINTER(Hits)), ("scratch", c_void_p),
        ("output", Tensor), ("lse", c_void_p), ("sink_logits", c_void_p),
    ]  # fmt: skip


class Library:
    """The C functions, with a status turned into an exception: library.pkv_stream_sync(stream)."""

    def __init__(self, path):
        self.functions = ctypes.CDLL(path)
        self.functions.pkv_last_error.restype = c_char_p
        self.functions.pkv_status_name.restype = c_char_p

    def __getattr__(self, name):
        function = getattr(self.functions, name)

        def call(*arguments):
            status = function(*arguments)
            if status != 0:
                text = self.functions.pkv_last_error().decode()
                raise RuntimeError(f"{self.functions.pkv_status_name(status).decode()}: {text}")

        return call

    def made(self, name, *arguments):
        """The handle that the function leaves behind its last argument."""
        handle = c_void_p()
        getattr(self, name)(*arguments, byref(handle))
        return handle

    def filled(self, kind, init):
        value = kind()
        getattr(self, init)(byref(value), ctypes.c_size_t(ctypes.sizeof(value)))
        return value


def view(memory, offset, dtype, shape, strides=None):
    """A view of a ctypes array; it keeps shape and strides alive, but not the memory."""
    extents = (c_int64 * len(shape))(*shape)
    steps = (c_int64 * len(strides))(*strides) if strides else None
    return Tensor(ctypes.addressof(memory) + offset, CPU, 0, len(shape), dtype, extents, steps, 0)


def read_trace(path):
    """The file's tensors in memory, and {name: (offset, shape)}."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    tensors = {
        name: (tensor["data_offsets"][0], tensor["shape"])
        for name, tensor in header.items()
        if name != "__metadata__"
    }
    return (ctypes.c_char * len(data)).from_buffer_copy(data), tensors


def words(memory):
    return " ".join(f"{word:08x}" for word in memoryview(memory).cast("B").cast("I"))


def main(trace, index_path):
    library = Library(os.environ.get("PARISKV_LIBRARY", "libpariskv.so.0"))
    data, tensors = read_trace(trace)
    (k_at, (h, n, d)), (v_at, (_, _, dv)), (q_at, (m, hq, _)) = (tensors[name] for name in "kvq")

    runtime = library.made("pkv_runtime_create", None)
    device = library.made("pkv_device_open", runtime, b"cpu", 0)
    stream = library.made("pkv_stream_create", device)
    config = library.made("pkv_config_create", b"default")
    library.pkv_config_set(config, b"head_dim", str(d).encode())
    library.pkv_config_set(config, b"value_dim", str(dv).encode())

    keys = view(data, k_at, F16, (h, n, d))
    values = view(data, v_at, F16, (h, n, dv))
    sample = view(data, q_at, F16, (hq, m, d), (d, hq * d, 1))
    codec = library.made(
        "pkv_codec_fit_sync", device, stream, config, byref(keys), byref(sample), byref(values)
    )
    index = library.made("pkv_index_create", device, codec, 1, c_int64(n))
    library.pkv_index_append_sync(index, stream, 0, byref(keys), byref(values))
    library.pkv_index_save_sync(index, stream, os.fsencode(index_path), 0)

    desc = library.filled(PlanDesc, "pkv_plan_desc_init")
    desc.query_heads, desc.owns_scratch = hq, 1
    plan = library.made("pkv_plan_create", index, config, byref(desc))

    positions, counts = (c_int32 * (h * HITS))(), (c_int32 * h)()
    scores, output = (ctypes.c_float * (h * HITS))(), (ctypes.c_float * (hq * dv))()
    hits = library.filled(Hits, "pkv_hits_init")
    hits.positions, hits.counts = ctypes.addressof(positions), ctypes.addressof(counts)
    hits.scores = ctypes.addressof(scores)
    step = library.filled(Step, "pkv_step_init")
    step.source.keys = view(data, k_at, F16, (1, h, n, d))
    step.source.values = view(data, v_at, F16, (1, h, n, dv))
    step.hits = ctypes.pointer(hits)
    step.output = view(output, 0, F32, (1, hq, dv))

    for i in range(min(QUERIES, m)):
        step.query = view(data, q_at + 2 * i * hq * d, F16, (1, hq, d))
        library.pkv_step_run(plan, stream, byref(step))
        library.pkv_stream_sync(stream)
        bits = words(scores).split()
        for head in range(h):
            used = range(head * HITS, head * HITS + counts[head])
            print("hits", *(f"{positions[j]}:{bits[j]}" for j in used))
        print("output", words(output))

    for handle, destroy in (
        (plan, "pkv_plan_destroy"),
        (index, "pkv_index_destroy"),
        (codec, "pkv_codec_destroy"),
        (config, "pkv_config_destroy"),
        (stream, "pkv_stream_destroy"),
        (device, "pkv_device_close"),
        (runtime, "pkv_runtime_destroy"),
    ):
        getattr(library.functions, destroy)(handle)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} TRACE INDEX")
    try:
        main(*sys.argv[1:])
    except (OSError, RuntimeError) as error:
        sys.exit(str(error))
