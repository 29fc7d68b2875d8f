"""C API: NULL for each pointer of each call, short structs, tensors without axes, sequence ids."""

import ctypes as c
import re

import numpy as np
import pytest
import structs
from binding import aligned_bytes, pointer, tensor
from capi import INVALID, OUT_OF_RANGE, REPOSITORY, Codec, Config, Handle, Index, refused
from capi_structs import Hits, IndexStats, PlanDesc
from decoding import Plan, Step
from reference import check_attention, normal
from structs import I32, I64, P

HEADERS = ("pariskv.h", "pariskv_stages.h")


def declared():
    """{function: [(type, name), ..]} of all functions of the headers that return a status."""
    functions = {}
    for name in HEADERS:
        text = (REPOSITORY / "api" / "include" / "pariskv" / name).read_text()
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
        for function, parameters in re.findall(r"PKV_API pkv_status (\w+)\(([^)]*)\);", text):
            pairs = (
                re.fullmatch(r"(.*?)(\w+)", p.strip(), re.DOTALL) for p in parameters.split(",")
            )
            functions[function] = [(pair[1].strip(), pair[2]) for pair in pairs]
    return functions


# May be NULL, as the headers say.
OPTIONAL = {
    ("pkv_runtime_create", "options"),
    ("pkv_device_set_parallel", "parallel"),
    ("pkv_device_free", "data"),
    ("pkv_codec_fit_sync", "queries"),
    ("pkv_codec_fit_sync", "values"),
    ("pkv_index_append", "values"),
    ("pkv_index_append_sync", "values"),
    ("pkv_index_load_sync", "out_codec"),
    ("pkv_fit_params", "value_center"),
}
NUMBERS = {"struct_size": 64, "kind": 1, "bytes": 64, "sequences": 1, "capacity": 64, "count": 1,
           "n": 10, "stream": 1, "seed": 42, "center_on": 1, "balance_on": 1}  # fmt: skip


class Objects:
    """A value for every parameter, by name: all of them valid."""

    def __init__(self, machine, tmp_path):
        self.machine = machine
        self.config = Config(machine, head_dim=16, v_source="none", tail="drop", k=4)
        self.keys, self.query_array = normal(1, 1, 40, 16), normal(2, 1, 1, 16)
        self.codec = Codec.fit(machine, self.config, self.keys)
        self.index = Index(machine, self.codec, 1, 64)
        self.index.append(0, self.keys)
        self.plan = Plan(machine, self.index, self.config, 1, 1)
        assert self.plan.scratch_bytes > 0
        self.step = Step(self.plan)
        self.event = Handle(machine, "pkv_event_destroy")
        machine.call("pkv_event_create", machine.device, self.event.out)
        self.memory = aligned_bytes(4096)
        self.store, self.store_memory = machine.new_store(self.index.geometry, 1, 64)
        self.tensors = {
            "keys": tensor(self.keys),
            "queries": tensor(self.keys),
            "values": tensor(self.keys),
            "query": tensor(self.query_array),
        }
        self.path = str(tmp_path / "x.pkv").encode()
        self.index.save(self.path.decode())
        self.before = self.index.content()

    def text(self, function, name):
        return {
            "name": b"k",
            "value": b"4",
            "path": self.path,
            "backend": b"cpu_ref",
            "profile": b"default",
        }[name]

    def value(self, function, kind, name):
        if "*" not in kind:
            size = {"int32_t": I32, "uint32_t": c.c_uint32, "pkv_status": I32}.get(kind, I64)
            return size(NUMBERS.get(name, 0))
        if kind == "const char *":
            return self.text(function, name)
        if kind.endswith("**") or kind == "const char **":
            return c.byref(P())
        known = {"pkv_runtime": self.machine.runtime, "pkv_device": self.machine.device,
                 "pkv_stream": self.machine.stream, "pkv_event": self.event,
                 "pkv_config": self.config, "pkv_codec": self.codec, "pkv_index": self.index,
                 "pkv_plan": self.plan}  # fmt: skip
        base = kind.replace("const", "").replace("*", "").strip()
        if base in known:
            return known[base]
        if base == "pkv_tensor":
            return c.byref(self.tensors[name])
        if base == "pkv_geometry":
            return c.byref(self.index.geometry)
        if base == "pkv_store":
            return c.byref(self.store)
        self.memory[:4].view(np.uint32)[0] = 4096
        return P(pointer(self.memory))


def test_null_for_each_pointer_of_each_call_is_named(machine, tmp_path):
    functions = declared()
    assert len(functions) > 55
    objects = Objects(machine, tmp_path)
    tried = 0
    for function, parameters in functions.items():
        for missing in (name for kind, name in parameters if "*" in kind):
            if (function, missing) in OPTIONAL:
                continue
            arguments = [
                None if name == missing else objects.value(function, kind, name)
                for kind, name in parameters
            ]
            status = getattr(machine.lib, function)(*arguments)
            text = machine.lib.pkv_last_error().decode()
            assert status == INVALID, (function, missing, status, text)
            assert re.search(rf"\b{missing}(=| is )NULL", text), (function, missing, text)
            tried += 1
    assert tried > 120
    assert objects.index.content() == objects.before
    assert objects.index.length(0) == 40
    assert objects.step.retrieve(objects.query_array).counts[0, 0] == 4


def test_optional_pointers_are_parameters_of_their_functions():
    functions = declared()
    for function, name in OPTIONAL:
        assert name in [parameter for _, parameter in functions[function]], (function, name)


def test_destroy_takes_null(machine):
    text = "".join(
        (REPOSITORY / "api" / "include" / "pariskv" / name).read_text() for name in HEADERS
    )
    names = re.findall(r"PKV_API void (pkv_\w+)\(", text)
    assert len(names) >= 8
    for name in names:
        getattr(machine.lib, name)(None)


def test_structs_of_an_older_header_take_defaults(machine):
    """Each struct ends before fields that it may lack; behind its size lies garbage."""
    keys, values, query = normal(3, 2, 50, 16), normal(4, 2, 50, 16), normal(5, 1, 4, 16)
    config = Config(machine, head_dim=16, tail="mean", k=5)
    codec = Codec.fit(machine, config, keys, None, values)
    index = Index(machine, codec, 2, 64)
    index.append(0, keys, values)
    plan = Plan(machine, index, config, 1, 4)
    full = Step(plan).retrieve(query).fetch(keys[None], values[None]).attend(query)

    desc = PlanDesc(struct_size=16, batch=1, query_heads=4)
    desc.sequences, desc.max_tokens = 0x1234, -5
    short_plan = Handle(machine, "pkv_plan_destroy")
    machine.call("pkv_plan_create", index, config, c.byref(desc), short_plan.out)
    step = Step(plan)
    step.hits.struct_size = Hits.sample_estimates.offset
    step.hits.sample_estimates = 0x1234
    machine.call(
        "pkv_retrieve",
        short_plan,
        machine.stream,
        c.byref(tensor(query)),
        P(pointer(step.scratch)),
        c.byref(step.hits),
    )
    assert step.positions.tobytes() == full.positions.tobytes()
    step.fetch(keys[None], values[None]).attend(query)
    assert step.output.tobytes() == full.output.tobytes()
    assert step.hits.sample_estimates == 0x1234

    stats = IndexStats(struct_size=IndexStats.bad_keys.offset, bad_keys=0x55)
    machine.call("pkv_index_stats_sync", index, machine.stream, c.byref(stats))
    assert (stats.tokens, stats.bad_keys) == (50, 0x55)
    # And a larger struct of a newer one, whose unknown part is zero.
    large = (c.c_char * 256)()
    newer = PlanDesc.from_buffer(large)
    newer.struct_size, newer.batch, newer.query_heads = 256, 1, 4
    machine.call("pkv_plan_create", index, config, large, Handle(machine, "pkv_plan_destroy").out)
    large[200] = 1
    with refused(INVALID, "byte 200 of 256"):
        machine.call("pkv_plan_create", index, config, large, c.byref(P()))


def test_strides_may_be_left_out_but_not_the_axes(machine):
    keys, query = normal(6, 2, 30, 16), normal(7, 1, 2, 16)
    config = Config(machine, head_dim=16, v_source="none", tail="drop", k=5)
    codec = Codec.fit(machine, config, keys)
    dense, strided = (Index(machine, codec, 1, 64) for _ in range(2))
    strided.append(0, keys)
    view = tensor(keys)
    view.strides = None
    append = ("pkv_index_append_sync", dense, machine.stream, I32(0))
    machine.call(*append, c.byref(view), None)
    assert dense.content() == strided.content()
    for call in ("keys", "query", "fit"):
        wrong = tensor({"keys": keys, "query": query, "fit": keys}[call])
        wrong.ndim = 0
        with refused(INVALID, "query" if call == "query" else "keys", "ndim=0"):
            if call == "keys":
                machine.call(*append, c.byref(wrong), None)
            elif call == "fit":
                machine.call("pkv_codec_fit_sync", machine.device, machine.stream, config,
                             c.byref(wrong), None, None, c.byref(P()))  # fmt: skip
            else:
                step = Step(Plan(machine, dense, config, 1, 2))
                machine.call("pkv_retrieve", step.plan, machine.stream, c.byref(wrong),
                             P(pointer(step.scratch)), c.byref(step.hits))  # fmt: skip
    assert dense.content() == strided.content()


@pytest.mark.parametrize("capacity", [0, -1, 2**31, 2**32 + 1, 2**62])
def test_a_capacity_beyond_the_positions_is_refused(machine, capacity):
    config = Config(machine, head_dim=16, v_source="none", tail="drop")
    codec = Codec.plain(machine, config)
    out, size = P(0x1234), I64()
    with refused(INVALID, f"capacity={capacity}", "1..2147483647"):
        machine.call("pkv_index_create", machine.device, codec, I32(1), I64(capacity), c.byref(out))
    assert out.value is None
    with refused(INVALID, f"capacity={capacity}", "1..2147483647"):
        machine.call("pkv_index_bytes", machine.device, codec, I32(1), I64(capacity), c.byref(size))


def test_the_layout_comes_from_strides_alone(machine):
    """Heads and tokens 2 each, d = 8: every layout has the same extents and bytes."""
    keys, values, query = normal(8, 2, 2, 2, 8), normal(9, 2, 2, 2, 8), normal(10, 2, 2, 8)
    token_major = [np.ascontiguousarray(a.swapaxes(1, 2)).swapaxes(1, 2) for a in (keys, values)]
    both = np.ascontiguousarray(np.stack([keys, values], axis=3))  # [b, h, t, 2, d]
    layouts = [(keys, values), token_major, (both[..., 0, :], both[..., 1, :])]
    assert len({view.strides for view, _ in layouts}) == 3
    config = Config(machine, head_dim=8, tail="mean", k=2)
    codec = Codec.plain(machine, config, 2)
    contents, outputs = [], []
    for key_view, value_view in layouts:
        index = Index(machine, codec, 2, 4)
        for b in range(2):
            index.append(b, key_view[b], value_view[b])
        step = Step(Plan(machine, index, config, 2, 2)).retrieve(query)
        step.attend(query, [(key_view, value_view, None)], zone=False)
        outputs.append(step.output.tobytes())
        for b in range(2):
            for h in range(2):
                check_attention(query[b, h], keys[b, h], values[b, h], 8**-0.5,
                                step.output[b, h], step.lse[b, h])  # fmt: skip
        step.fetch(key_view, value_view)
        for b in range(2):
            for h in range(2):
                rows = keys[b, h, step.positions[b, h]]
                assert step.row_keys[b, h].tobytes() == rows.tobytes()
        contents.append(index.content())
    assert len(set(contents)) == len(set(outputs)) == 1


@pytest.mark.parametrize("sequence", [-1, 4, 2**31 - 1])
def test_a_sequence_that_is_not_there_is_named_in_every_call(machine, sequence):
    config = Config(machine, head_dim=16, v_source="none", tail="drop")
    index = Index(machine, Codec.plain(machine, config), 4, 64)
    keys = normal(11, 1, 10, 16)
    for existing in range(4):
        index.append(existing, keys)
    before = index.content()
    view, planes = tensor(keys), np.zeros((4, 4096), np.uint8)
    records = structs.Records(
        signs=planes[0].ctypes.data,
        vote_factors=planes[1].ctypes.data,
        codes=planes[2].ctypes.data,
        factors=planes[3].ctypes.data,
    )
    number, stream = I32(sequence), machine.stream
    cache = P()
    machine.call("pkv_row_cache_create", index, stream, I32(view.dtype), I32(8), c.byref(cache))
    sequences = np.array([0, sequence], np.int32)
    desc = PlanDesc(batch=2, query_heads=1, sequences=sequences.ctypes.data)
    calls = {
        "pkv_index_append": (index, stream, number, c.byref(view), None),
        "pkv_index_append_sync": (index, stream, number, c.byref(view), None),
        "pkv_index_reset": (index, stream, number),
        "pkv_index_length": (index, number, c.byref(I64())),
        "pkv_index_export_sync": (index, stream, number, I32(0), I64(0), I64(1), c.byref(records)),
        "pkv_plan_create": (index, config, c.byref(desc), c.byref(P())),
        "pkv_row_cache_drop": (cache, stream, number),
    }
    takes = {name for name, pairs in declared().items() if ("int32_t", "sequence") in pairs}
    assert takes | {"pkv_plan_create"} == set(calls)
    for name, arguments in calls.items():
        with refused(OUT_OF_RANGE, f"={sequence}", "0..3"):
            machine.call(name, *arguments)
    machine.lib.pkv_row_cache_destroy(cache)
    assert index.content() == before
