"""The C API by ctypes, as far as the comparison with peers needs it: torch tensors in, statuses
checked."""

import ctypes as c
import json
import os
from pathlib import Path

P = c.c_void_p
I32, I64, U32 = c.c_int32, c.c_int64, c.c_uint32
DTYPES = {"torch.float32": 1, "torch.float16": 3, "torch.bfloat16": 4}
ALIGNMENT = 256
MAX_SCHEDULE = 4


class PariskvError(RuntimeError):
    def __init__(self, call, status, text):
        where = "" if text.startswith(call) else f"{call}: "
        super().__init__(f"{where}{text} (status {status})")
        self.status = status


class Struct(c.Structure):
    """Fills struct_size, where there is one, and keeps what it points to alive."""

    def __init__(self, **fields):
        names = {name for name, *_ in self._fields_}
        if unknown := set(fields) - names:
            raise TypeError(f"{type(self).__name__} has no {sorted(unknown)}")
        if "struct_size" in names:
            fields.setdefault("struct_size", c.sizeof(self))
        super().__init__(**fields)
        self.kept = list(fields.values())


def struct(name, *fields):
    return type(name, (Struct,), {"_fields_": list(fields)})


def addresses(*names):
    return [(name, P) for name in names]


SIZE = ("struct_size", U32)
Tensor = struct(
    "Tensor",
    ("data", P),
    ("device_type", I32),
    ("device_id", I32),
    ("ndim", I32),
    ("dtype", I32),
    ("shape", c.POINTER(I64)),
    ("strides", c.POINTER(I64)),
    ("byte_offset", c.c_uint64),
)
Geometry = struct(
    "Geometry",
    SIZE,
    *((name, I32) for name in ("kv_heads", "head_dim", "value_dim", "v_source", "codec", "vote")),
    *((name, I32) for name in ("rounds", "sketch_bits", "value_norm")),
    ("seed", c.c_uint64),
    ("sketch_stride", I32),
    ("reserved", I32),
)
CodecData = struct(
    "CodecData", SIZE, ("kv_heads", I32), *addresses("center", "balance", "value_center")
)
PlanDesc = struct(
    "PlanDesc",
    SIZE,
    ("batch", I32),
    ("query_heads", I32),
    ("owns_scratch", I32),
    ("sequences", P),
    ("max_tokens", I64),
)
Hits = struct(
    "Hits",
    SIZE,
    ("flags", U32),
    *addresses("positions", "scores", "counts", "candidates", "candidate_counts"),
    *addresses("estimates", "rest_lse", "sample_estimates"),
)
Rows = struct("Rows", SIZE, ("reserved", I32), ("keys", Tensor), ("values", Tensor))
Dense = struct("Dense", ("rows", Rows), ("lengths", P))
Step = struct(
    "Step",
    SIZE,
    ("dense_count", I32),
    ("query", Tensor),
    ("dense", Dense * 4),
    ("source", Rows),
    ("hits", c.POINTER(Hits)),
    ("scratch", P),
    ("output", Tensor),
    ("lse", P),
    ("sink_logits", P),
    ("row_cache", P),
)
RowCacheStats = struct(
    "RowCacheStats",
    SIZE,
    ("rows", I32),
    *((name, I64) for name in ("device_bytes", "looked_up", "found")),
)
# The stage API.
CodecParams = struct(
    "CodecParams",
    ("geometry", c.POINTER(Geometry)),
    *addresses("center", "balance", "inv_balance", "signs_1", "signs_2"),
    *addresses("value_center", "value_signs_1", "value_signs_2", "set_of"),
)
Store = struct(
    "Store",
    ("base", P),
    ("row_bytes", I64),
    ("capacity", I64),
    ("pages", P),
    ("pages_stride", I64),
)
Batch = struct(
    "Batch", ("batch", I32), ("reserved", I32), *addresses("sequences", "lengths"),
    ("max_length", I64),
)  # fmt: skip
EncodeArgs = struct(
    "EncodeArgs",
    SIZE,
    ("batch", I32),
    ("codec", CodecParams),
    ("keys", Tensor),
    ("values", Tensor),
    *addresses("sequences", "starts", "counts"),
    ("store", Store),
    *addresses("occupancy", "value_sums", "good_counts", "first_bad"),
)
VoteArgs = struct(
    "VoteArgs",
    SIZE,
    ("query_heads", I32),
    ("vote_group", I32),
    ("rho_of", I32),
    ("codec", CodecParams),
    ("batch", Batch),
    ("queries", Tensor),
    ("store", Store),
    *addresses("occupancy", "votes"),
    ("votes_stride", I64),
)
CandidateRule = struct(
    "CandidateRule",
    ("below", I64 * MAX_SCHEDULE),
    ("ppm", I64 * MAX_SCHEDULE),
    ("k", I32),
    ("steps", I32),
)
SelectArgs = struct(
    "SelectArgs",
    SIZE,
    ("kv_heads", I32),
    ("batch", Batch),
    ("rule", CandidateRule),
    *addresses("votes"),
    ("votes_stride", I64),
    *addresses("candidates"),
    ("candidates_stride", I64),
    *addresses("candidate_counts"),
)


def device_type(view):
    """PKV_DEVICE_*: CUDA, CUDA_HOST or CPU."""
    if view.is_cuda:
        return 2
    return 3 if view.is_pinned() else 1


def tensor(view):
    """A Tensor over a torch tensor, strides included. It keeps the view alive."""
    axes = I64 * view.ndim
    result = Tensor(
        data=view.data_ptr(),
        device_type=device_type(view),
        device_id=view.get_device() if view.is_cuda else 0,
        ndim=view.ndim,
        dtype=DTYPES[str(view.dtype)],
        shape=axes(*view.shape),
        strides=axes(*view.stride()),
    )
    result.kept.append(view)
    return result


def library_path(given=None):
    """The library that was asked for, else that of PARISKV_LIBRARY, else a build's."""
    if given or os.environ.get("PARISKV_LIBRARY"):
        return Path(given or os.environ["PARISKV_LIBRARY"])
    builds = Path(__file__).resolve().parents[2] / "build"
    for preset in ("release", "dev"):
        path = builds / preset / "lib" / "libpariskv.so"
        if path.is_file():
            return path
    return builds / "release" / "lib" / "libpariskv.so"


class Library:
    """The loaded library with one device and one stream."""

    def __init__(self, path, backend="auto", threads=None, plugin=None):
        self.lib = c.CDLL(str(path))
        self.lib.pkv_last_error.restype = c.c_char_p
        self.lib.pkv_version.restype = c.c_char_p
        self.lib.pkv_device_backend.restype = c.c_char_p
        self.runtime, self.device, self.stream = P(), P(), P()
        self.call("pkv_runtime_create", None, c.byref(self.runtime))
        if plugin:
            self.call("pkv_runtime_backend_load", self.runtime, os.fsencode(plugin), c.byref(I32()))
        self.call("pkv_device_open", self.runtime, backend.encode(), I32(0), c.byref(self.device))
        self.call("pkv_stream_create", self.device, c.byref(self.stream))
        self.backend = self.lib.pkv_device_backend(self.device).decode()
        self.version = self.lib.pkv_version().decode()
        self.threads = self._set_threads(threads)

    def _set_threads(self, threads):
        if self.backend == "cpu_ref":  # plain loops
            return 1
        if threads:
            self.call("pkv_device_set", self.device, b"threads", str(threads).encode())
        return threads

    def call(self, name, *arguments):
        status = getattr(self.lib, name)(*arguments)
        if status:
            raise PariskvError(name, status, self.lib.pkv_last_error().decode())

    def describe(self):
        out = c.c_char_p()
        self.call("pkv_device_describe", self.device, c.byref(out))
        return json.loads(out.value)

    def wrap_stream(self, native):
        """Everything goes to a native stream from now on."""
        self.lib.pkv_stream_destroy(self.stream)
        self.stream = P()
        handle = c.c_size_t(native)
        self.call("pkv_stream_wrap", self.device, handle, c.byref(self.stream))

    def sync(self):
        self.call("pkv_stream_sync", self.stream)

    def close(self):
        self.lib.pkv_stream_destroy(self.stream)
        self.lib.pkv_device_close(self.device)
        self.lib.pkv_runtime_destroy(self.runtime)


class Handle:
    """Owns what a create call makes, and keeps what it was made from."""

    def __init__(self, library, kind, *origins):
        self.library, self.handle, self.origins = library, P(), origins
        self._as_parameter_ = self.handle
        self._destroy = getattr(library.lib, f"pkv_{kind}_destroy")

    @property
    def out(self):
        return c.byref(self.handle)

    def close(self):
        self._destroy(self.handle)
        self.handle.value = None

    def __del__(self):
        self.close()


def config(library, profile="default", **options):
    made = Handle(library, "config")
    library.call("pkv_config_create", profile.encode(), made.out)
    for name, value in options.items():
        library.call("pkv_config_set", made, name.encode(), str(value).encode())
    return made


def fit(library, configuration, keys, queries, values):
    """A codec from keys, values [h, n, d] and queries [hq, m, d]."""
    codec = Handle(library, "codec")
    views = [tensor(view) for view in (keys, queries, values)]
    library.call(
        "pkv_codec_fit_sync", library.device, library.stream, configuration, *map(c.byref, views),
        codec.out,
    )  # fmt: skip
    return codec


def index(library, codec, keys, values):
    """An index of one sequence over keys, values [h, n, d]."""
    made = Handle(library, "index", codec)
    library.call(
        "pkv_index_create", library.device, codec, I32(1), I64(keys.shape[1]), made.out
    )  # fmt: skip
    views = [tensor(view) for view in (keys, values)]
    library.call("pkv_index_append_sync", made, library.stream, I32(0), *map(c.byref, views))
    return made


def plan(library, index_, configuration, query_heads, tokens=1):
    """A plan for query tokens of sequence 0 that owns its scratch."""
    made = Handle(library, "plan", index_)
    sequences = (I32 * tokens)()
    desc = PlanDesc(
        batch=tokens, query_heads=query_heads, owns_scratch=1, sequences=c.addressof(sequences)
    )
    library.call("pkv_plan_create", index_, configuration, c.byref(desc), made.out)
    return made
