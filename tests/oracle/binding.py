"""A minimal ctypes binding of the stage API and of the codec's fit: numpy arrays in, status checks,
nothing else.

The environment variable PARISKV_LIBRARY names the library, PKV_BACKEND the backend, by default
cpu_ref. Only backends whose device memory is host memory can be used here."""

import ctypes as c
import os

import numpy as np
import structs as s

F32, F16, BF16 = 1, 3, 4
NUMPY_TYPES = {F32: np.float32, F16: np.float16, BF16: np.uint16}
STAGES = {
    "fit": s.FitArgs,
    "encode": s.EncodeArgs,
    "vote": s.VoteArgs,
    "select": s.SelectArgs,
    "rerank": s.RerankArgs,
    "fetch": s.FetchArgs,
    "attend": s.AttendArgs,
}


class PariskvError(RuntimeError):
    def __init__(self, status, text):
        super().__init__(f"status {status}: {text}")
        self.status = status


def pointer(array):
    """Address of an array's first element; None stays None."""
    return None if array is None else array.__array_interface__["data"][0]


def tensor(view, dtype=None, offset=0):
    """A Tensor over a numpy view, strides included; bf16 travels as uint16. None: ndim 0. The first
    `offset` bytes of the address go into byte_offset. The result keeps the view alive."""
    if view is None:
        return s.Tensor()
    if dtype is None:
        dtype = {np.dtype(np.float32): F32, np.dtype(np.float16): F16}[view.dtype]
    axes = c.c_int64 * view.ndim
    result = s.Tensor(
        data=pointer(view) - offset if view.size else None,
        device_type=1,
        ndim=view.ndim,
        dtype=dtype,
        shape=axes(*view.shape),
        strides=axes(*(stride // view.itemsize for stride in view.strides)) if view.size else None,
        byte_offset=offset if view.size else 0,
    )
    result.view = view
    return result


def aligned_bytes(size, alignment=256):
    """Zeroed bytes at an aligned address."""
    raw = np.zeros(size + alignment, np.uint8)
    start = -pointer(raw) % alignment
    return raw[start : start + size]


class Library:
    """The loaded library with one device and one stream."""

    def __init__(self):
        path = os.environ.get("PARISKV_LIBRARY")
        if not path:
            raise RuntimeError(
                "set PARISKV_LIBRARY to the path of libpariskv.so, e.g. build/dev/lib/libpariskv.so"
            )
        self.lib = c.CDLL(path)
        self.lib.pkv_last_error.restype = c.c_char_p
        self.lib.pkv_version.restype = c.c_char_p
        self.runtime, self.device, self.stream = s.P(), s.P(), s.P()
        self.call("pkv_runtime_create", None, c.byref(self.runtime))
        backend = os.environ.get("PKV_BACKEND", "cpu_ref").encode()
        self.call("pkv_device_open", self.runtime, backend, s.I32(0), c.byref(self.device))
        self.call("pkv_stream_create", self.device, c.byref(self.stream))

    def close(self):
        self.lib.pkv_stream_destroy(self.stream)
        self.lib.pkv_device_close(self.device)
        self.lib.pkv_runtime_destroy(self.runtime)

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status:
            raise PariskvError(status, self.lib.pkv_last_error().decode())

    def stage(self, stage, **fields):
        """Runs one stage; arrays become pointers."""
        arguments = STAGES[stage](
            **{k: pointer(v) if isinstance(v, np.ndarray) else v for k, v in fields.items()}
        )
        self.call(f"pkv_stage_{stage}_sync", self.device, self.stream, c.byref(arguments))

    def sign_vector(self, seed, stream, count):
        out = np.zeros(count, np.float32)
        self.call(
            "pkv_sign_vector", c.c_uint64(seed), s.I32(stream), s.I32(count), s.P(pointer(out))
        )
        return out

    def candidate_count(self, rule, n):
        out = s.I64()
        self.call("pkv_candidate_count", c.byref(rule), s.I64(n), c.byref(out))
        return out.value

    def record_sizes(self, geometry):
        out = s.RecordSizes()
        self.call("pkv_record_sizes_get", c.byref(geometry), c.byref(out))
        return {name: getattr(out, name) for name, *_ in s.RecordSizes._fields_[1:]}

    def fit_params(self, sums, center_on, balance_on, heads, dim, value_dim):
        """(center, balance, inv_balance, value_center) from FitArgs that hold sums."""
        out = [np.full((heads, dim), np.nan, np.float32) for _ in range(3)]
        value = np.full((heads, value_dim), np.nan, np.float32) if value_dim else None
        self.call(
            "pkv_fit_params",
            c.byref(sums),
            s.I32(center_on),
            s.I32(balance_on),
            *(s.P(pointer(array)) for array in (*out, value)),
        )
        return (*out, value)

    def codec_fit(self, options, keys, queries=None, values=None):
        """{name: float32 [h, ..]} of a codec fitted with the default profile and `options`; tensors
        keys [h, n, d], queries [hq, m, d], values [h, n, dv]."""
        config, codec = s.P(), s.P()
        self.call("pkv_config_create", b"default", c.byref(config))
        try:
            for name, value in options.items():
                self.call("pkv_config_set", config, name.encode(), str(value).encode())
            tensors = (None if t is None else c.byref(t) for t in (keys, queries, values))
            self.call(
                "pkv_codec_fit_sync", self.device, self.stream, config, *tensors, c.byref(codec)
            )
            return self.codec_numbers(codec, keys.view.shape[-1])
        finally:
            self.lib.pkv_codec_destroy(codec)
            self.lib.pkv_config_destroy(config)

    def codec_numbers(self, codec, dim):
        data, geometry = s.CodecData(), s.Geometry()
        self.call("pkv_codec_export", codec, c.byref(data))
        self.call("pkv_codec_geometry", codec, c.byref(geometry))
        widths = {"center": dim, "balance": dim, "value_center": geometry.value_dim}
        numbers = {}
        for name, width in widths.items():
            address = getattr(data, name)
            if address is None:
                numbers[name] = None
                continue
            source = (c.c_float * (data.kv_heads * width)).from_address(address)
            numbers[name] = np.array(source, np.float32).reshape(data.kv_heads, width)
        return numbers

    def new_store(self, geometry, rows, capacity):
        """(Store, its bytes) for `rows` rows, filled with a pattern."""
        size = s.I64()
        self.call(
            "pkv_store_row_bytes",
            self.device,
            c.byref(geometry),
            s.I64(capacity),
            c.byref(size),
        )
        memory = aligned_bytes(rows * size.value)
        return s.Store(base=pointer(memory), row_bytes=size.value, capacity=capacity), memory

    def convert_store(self, direction, geometry, store, row, begin, count, planes):
        """export: fills `planes` (name to array [count, ..], value planes [sketches, ..]); import:
        reads them."""
        records = s.Records(
            row_tokens=count, **{name: pointer(plane) for name, plane in planes.items()}
        )
        self.call(
            f"pkv_store_{direction}_sync",
            self.device,
            self.stream,
            c.byref(geometry),
            c.byref(store),
            s.I64(row),
            s.I64(begin),
            s.I64(count),
            c.byref(records),
        )
