"""python -m bench.gpu_rows: rows in host memory that the CPU rewrites. A fetch that is launched
after the write must bring the new bytes, and so must a replayed graph of it, captured before.
Prints one JSON object; exit code 0, 1 stale bytes, 4 no device. Needs the standard library alone.

Captures by the vendor's runtime: libcuda for cuda and hip-emu, libamdhip64 for hip. Other backends
have no streams of a vendor: theirs is launched only."""

import argparse
import ctypes as c
import json
import sys
from pathlib import Path

from bench.compare import capi
from bench.compare.capi import I32, I64, Hits, P, PlanDesc, Rows, Tensor

HOST, F32 = 2, 1
TOKENS, DIM, ROW = 64, 64, 5
HOST_TYPES = {"cuda": 3, "rocm": 11}


class Graphs:
    """Streams and graphs of a vendor's runtime."""

    def __init__(self, backend):
        self.is_hip = backend == "hip"
        self.lib = c.CDLL("libamdhip64.so" if self.is_hip else "libcuda.so.1")
        self.stream, self.graph, self.executable = P(), P(), P()
        if self.is_hip:
            self.call("hipSetDevice", 0)
            self.call("hipStreamCreateWithFlags", c.byref(self.stream), 1)
            return
        context = P()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", c.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.call("cuStreamCreate", c.byref(self.stream), 1)

    def call(self, name, *arguments):
        code = getattr(self.lib, name)(*arguments)
        if code:
            raise RuntimeError(f"{name}: error {code}")

    def capture(self, enqueue):
        """Relaxed: other streams go on."""
        graph = c.byref(self.graph)
        if self.is_hip:
            self.call("hipStreamBeginCapture", self.stream, 2)
            enqueue()
            self.call("hipStreamEndCapture", self.stream, graph)
            out = c.byref(self.executable)
            self.call("hipGraphInstantiate", out, self.graph, None, None, c.c_size_t(0))
            return
        self.call("cuStreamBeginCapture_v2", self.stream, 2)
        enqueue()
        self.call("cuStreamEndCapture", self.stream, graph)
        self.call("cuGraphInstantiateWithFlags", c.byref(self.executable), self.graph,
                  c.c_ulonglong(0))  # fmt: skip

    def replay(self):
        name = "hipGraphLaunch" if self.is_hip else "cuGraphLaunch"
        self.call(name, self.executable, self.stream)


class Memory:
    """Host memory of the device, as f32 [.., DIM]."""

    def __init__(self, library, where, *shape):
        self.count = 1
        for extent in shape:
            self.count *= extent
        self.address = P()
        size = I64(4 * self.count)
        library.call("pkv_device_alloc", library.device, I32(HOST), size, c.byref(self.address))
        self.floats = (c.c_float * self.count).from_address(self.address.value)
        self.ints = (I32 * self.count).from_address(self.address.value)
        extents = (I64 * len(shape))(*shape)
        self.tensor = Tensor(data=self.address.value, device_type=where, device_id=0,
                             ndim=len(shape), dtype=F32, shape=extents)  # fmt: skip
        self.tensor.kept.append(extents)


class Rewriting:
    def __init__(self, library):
        self.library = library
        kind = library.describe()["device_type"]
        where = HOST_TYPES.get(kind, 1)
        make = lambda *shape: Memory(library, where, *shape)  # noqa: E731
        self.keys, self.values = make(1, TOKENS, DIM), make(1, TOKENS, DIM)
        for i in range(TOKENS * DIM):
            self.keys.floats[i] = (i * 7919 % 1009) / 500 - 1
            self.values.floats[i] = (i * 104729 % 1013) / 500 - 1
        config = capi.config(library, head_dim=DIM, candidates="1", k=TOKENS, tail="drop")
        self.query = make(1, 1, DIM)
        for i in range(DIM):
            self.query.floats[i] = (i * 31 % 17) / 9 - 1
        self.codec = capi.Handle(library, "codec")
        views = [c.byref(memory.tensor) for memory in (self.keys, self.query, self.values)]
        query = c.byref(self.heads(self.query))
        library.call("pkv_codec_fit_sync", library.device, library.stream, config, views[0], query,
                     views[2], self.codec.out)  # fmt: skip
        self.index = capi.Handle(library, "index", self.codec)
        library.call("pkv_index_create", library.device, self.codec, I32(1), I64(TOKENS),
                     self.index.out)  # fmt: skip
        library.call("pkv_index_append_sync", self.index, library.stream, I32(0), views[0],
                     views[2])  # fmt: skip
        self.plan = capi.Handle(library, "plan", self.index)
        desc = PlanDesc(batch=1, query_heads=1, owns_scratch=1)
        library.call("pkv_plan_create", self.index, config, c.byref(desc), self.plan.out)
        self.positions, self.counts = make(1, 1, TOKENS), make(1, 1)
        scores = make(1, 1, TOKENS)
        self.hits = Hits(positions=self.positions.address, scores=scores.address,
                         counts=self.counts.address)  # fmt: skip
        self.row_keys, self.row_values = make(1, 1, TOKENS, DIM), make(1, 1, TOKENS, DIM)
        self.source = Rows(keys=self.batch(self.keys), values=self.batch(self.values))
        self.rows = Rows(keys=self.row_keys.tensor, values=self.row_values.tensor)

    @staticmethod
    def view(memory, *shape):
        extents = (I64 * len(shape))(*shape)
        made = Tensor(data=memory.address.value, device_type=memory.tensor.device_type,
                      device_id=0, ndim=len(shape), dtype=F32, shape=extents)  # fmt: skip
        made.kept.append(extents)
        return made

    def heads(self, query):
        return self.view(query, 1, 1, DIM)

    def batch(self, memory):
        return self.view(memory, 1, 1, TOKENS, DIM)

    def retrieve(self):
        self.library.call("pkv_retrieve", self.plan, self.library.stream,
                          c.byref(self.heads(self.query)), None, c.byref(self.hits))  # fmt: skip
        self.library.sync()
        if self.counts.ints[0] != TOKENS:
            raise RuntimeError(f"{self.counts.ints[0]} hits instead of {TOKENS}")

    def fetch(self):
        self.library.call("pkv_fetch", self.plan, self.library.stream, c.byref(self.source),
                          c.byref(self.hits), c.byref(self.rows))  # fmt: skip

    def rewrite(self, round_):
        for j in range(DIM):
            self.keys.floats[ROW * DIM + j] = 1000 * round_ + j
            self.values.floats[ROW * DIM + j] = -1000 * round_ - j

    def stale(self):
        """How many floats of the fetched rows are not the source's."""
        wrong = 0
        for slot in range(TOKENS):
            begin = self.positions.ints[slot] * DIM
            for source, rows in ((self.keys, self.row_keys), (self.values, self.row_values)):
                got = rows.floats[slot * DIM : (slot + 1) * DIM]
                wrong += sum(a != b for a, b in zip(got, source.floats[begin : begin + DIM]))
        return wrong


def run(options):
    library = capi.Library(options.prefix / "lib" / "libpariskv.so.0", options.backend,
                           plugin=options.plugin)  # fmt: skip
    for setting in options.set:
        name, value = setting.split("=", 1)
        library.call("pkv_device_set", library.device, name.encode(), value.encode())
    graphs = Graphs(options.backend) if options.backend in ("cuda", "hip", "hip-emu") else None
    if graphs:
        library.wrap_stream(graphs.stream.value)
    work = Rewriting(library)
    work.retrieve()
    work.fetch()
    library.sync()
    result = {"backend": library.backend, "device": library.describe().get("device", "")}
    result["first"] = work.stale()
    if graphs:
        graphs.capture(work.fetch)
    result["launched"] = result["replayed"] = 0 if graphs else None
    for round_ in range(1, 101):
        if graphs:
            work.rewrite(2 * round_)
            graphs.replay()
            library.sync()
            result["replayed"] += work.stale()
        work.rewrite(2 * round_ + 1)
        work.fetch()
        library.sync()
        result["launched"] = (result["launched"] or 0) + work.stale()
    return result


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="cuda")
    parser.add_argument(
        "--plugin", type=Path, help="the backend's library, if not where it is found"
    )
    parser.add_argument("--prefix", type=Path, default=Path("build/cuda"))
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    options = parser.parse_args()
    try:
        result = run(options)
    except (OSError, RuntimeError) as error:
        print(json.dumps({"backend": options.backend, "trouble": str(error)}))
        return 4
    print(json.dumps(result))
    return int(any(result[name] for name in ("first", "launched", "replayed")))


if __name__ == "__main__":
    sys.exit(main())
