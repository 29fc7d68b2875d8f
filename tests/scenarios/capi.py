"""The C API by ctypes: a device, configs, codecs and indices on numpy arrays."""

import ctypes as c
import os
from pathlib import Path

import numpy as np
from binding import Library, PariskvError, pointer, tensor
from capi_structs import IndexStats
from structs import I32, I64, PLANES, CodecData, Geometry, P, Records, RecordSizes

REPOSITORY = Path(__file__).resolve().parents[2]
LIBRARY = Path(
    os.environ.get("PARISKV_LIBRARY", REPOSITORY / "build" / "dev" / "lib" / "libpariskv.so")
)
OK, INVALID, NOT_FOUND, EXHAUSTED, PRECONDITION, OUT_OF_RANGE, DATA_LOSS = 0, 3, 5, 8, 9, 11, 15
SAVE_OVERWRITE = 1


class Machine(Library):
    """The library with one device of a backend, and a stream."""

    def __init__(self, path, backend):
        self.lib = c.CDLL(str(path))
        self.lib.pkv_last_error.restype = c.c_char_p
        self.backend = backend
        self.runtime, self.device, self.stream = P(), P(), P()
        self.call("pkv_runtime_create", None, c.byref(self.runtime))
        self.call("pkv_device_open", self.runtime, backend.encode(), I32(0), c.byref(self.device))
        self.call("pkv_stream_create", self.device, c.byref(self.stream))

    def sync(self):
        self.call("pkv_stream_sync", self.stream)


def optional(view, dtype=None):
    return None if view is None else c.byref(tensor(view, dtype))


class Handle:
    """Owns what a create call made."""

    def __init__(self, machine, destroy):
        self.machine, self.handle, self.destroy = machine, P(), getattr(machine.lib, destroy)
        self._as_parameter_ = self.handle

    @property
    def out(self):
        return c.byref(self.handle)

    def __del__(self):
        self.destroy(self.handle)


class Config(Handle):
    def __init__(self, machine, profile="default", **options):
        super().__init__(machine, "pkv_config_destroy")
        machine.call("pkv_config_create", profile.encode(), self.out)
        for name, value in options.items():
            self.set(name, value)

    def set(self, name, value):
        self.machine.call("pkv_config_set", self, name.encode(), str(value).encode())

    def get(self, name):
        out = c.c_char_p()
        self.machine.call("pkv_config_get", self, name.encode(), c.byref(out))
        return out.value.decode()


class Codec(Handle):
    def __init__(self, machine):
        super().__init__(machine, "pkv_codec_destroy")

    @classmethod
    def fit(cls, machine, config, keys, queries=None, values=None, dtype=None):
        """keys [h, n, d], queries [hq, m, d], values [h, n, dv]."""
        codec = cls(machine)
        tensors = (optional(view, dtype) for view in (keys, queries, values))
        machine.call(
            "pkv_codec_fit_sync", machine.device, machine.stream, config, *tensors, codec.out
        )
        return codec

    @classmethod
    def stored(cls, machine, config, center, balance, value_center=None):
        """From numbers, [h, d] each."""
        arrays = [None if a is None else np.ascontiguousarray(a, np.float32)
                  for a in (center, balance, value_center)]  # fmt: skip
        data = CodecData(kv_heads=len(arrays[0]))
        data.center, data.balance, data.value_center = map(pointer, arrays)
        codec = cls(machine)
        machine.call("pkv_codec_import", machine.device, config, c.byref(data), codec.out)
        return codec

    @classmethod
    def plain(cls, machine, config, heads=1):
        """Centre 0, balance 1."""
        dim, sketch = int(config.get("head_dim")), config.get("tail").startswith(("sa", "sk"))
        value_dim = config.get("value_dim")
        value_dim = int(value_dim) if value_dim.isdigit() else dim
        zeros = np.zeros((heads, dim))
        value_center = np.zeros((heads, value_dim)) if sketch else None
        return cls.stored(machine, config, zeros, zeros + 1, value_center)

    @property
    def geometry(self):
        out = Geometry()
        self.machine.call("pkv_codec_geometry", self, c.byref(out))
        return out

    def numbers(self):
        return self.machine.codec_numbers(self, self.geometry.head_dim)


class Index(Handle):
    def __init__(self, machine, codec, sequences, capacity):
        super().__init__(machine, "pkv_index_destroy")
        self.geometry = codec.geometry
        machine.call(
            "pkv_index_create", machine.device, codec, I32(sequences), I64(capacity), self.out
        )

    @classmethod
    def load(cls, machine, path):
        index = cls.__new__(cls)
        Handle.__init__(index, machine, "pkv_index_destroy")
        codec = Codec(machine)
        machine.call(
            "pkv_index_load_sync",
            machine.device,
            machine.stream,
            str(path).encode(),
            index.out,
            codec.out,
        )
        index.geometry = codec.geometry
        return index

    def append(self, sequence, keys, values=None, dtype=None):
        """keys [h, t, d], values [h, t, dv]; waits."""
        self.machine.call(
            "pkv_index_append_sync",
            self,
            self.machine.stream,
            I32(sequence),
            optional(keys, dtype),
            optional(values, dtype),
        )

    def reset(self, sequence):
        self.machine.call("pkv_index_reset", self, self.machine.stream, I32(sequence))

    def length(self, sequence):
        out = I64()
        self.machine.call("pkv_index_length", self, I32(sequence), c.byref(out))
        return out.value

    def stats(self):
        out = IndexStats()
        self.machine.call("pkv_index_stats_sync", self, self.machine.stream, c.byref(out))
        return out

    def save(self, path, flags=0):
        self.machine.call(
            "pkv_index_save_sync",
            self,
            self.machine.stream,
            str(path).encode(),
            c.c_uint32(flags),
        )

    def restore(self, path):
        self.machine.call("pkv_index_restore_sync", self, self.machine.stream, str(path).encode())

    def records(self, sequence=0, head=0, begin=0, count=None):
        """{plane: [entries, ..]} of one row: signs, codes [count, planes, d/8], factors, .."""
        g = self.geometry
        if count is None:
            count = self.length(sequence) - begin
        sizes = RecordSizes()
        self.machine.call("pkv_record_sizes_get", c.byref(g), c.byref(sizes))
        planes = {}
        for name in PLANES:
            size, entries = getattr(sizes, name), count
            if name in ("value_signs", "value_codes", "value_factors") and size:
                stride = g.sketch_stride
                entries = -(-(begin + count) // stride) - -(-begin // stride)
            if size:
                planes[name] = np.full((entries, size), 0xEE, np.uint8)
        records = Records(row_tokens=count, **{n: pointer(p) for n, p in planes.items()})
        self.machine.call(
            "pkv_index_export_sync",
            self,
            self.machine.stream,
            I32(sequence),
            I32(head),
            I64(begin),
            I64(count),
            c.byref(records),
        )
        for name in ("vote_factors", "factors", "value_factors", "value_norms"):
            if name in planes:
                planes[name] = planes[name].view(np.uint16)
        return planes

    def content(self):
        """All records as bytes, for comparisons."""
        return b"".join(
            plane.tobytes()
            for sequence in range(self.stats().sequences)
            for head in range(self.geometry.kv_heads)
            for plane in self.records(sequence, head).values()
        )


def refused(status, *texts):
    """A context that wants a refusal with this status and these texts in the message."""
    return Refusal(status, texts)


class Refusal:
    def __init__(self, status, texts):
        self.status, self.texts = status, texts

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert kind is not None, "nothing was refused"
        if not isinstance(error, PariskvError):
            return False
        assert error.status == self.status, error
        for text in self.texts:
            assert str(text) in str(error), f"{text!r} is not in {str(error)!r}"
        return True
