"""What a configuration needs of the device and of host memory, and what there is."""

from typing import NamedTuple

import pariskv
import torch

from bench.whole.attention import RING, SINK

GIB = 1 << 30
DEVICE_SPARE = 2 * GIB  # scratch of steps, activations, what torch's allocator keeps
HOST_SPARE = 8 * GIB


class Need(NamedTuple):
    device: int
    host: int  # pinned, of all layers
    host_layer: int = 0  # of one, where layers may share; 0: they may not


class Room(NamedTuple):
    """Bytes that may be taken: on the device beside the weights, in pinned host memory."""

    device: int
    host: int


def tokens_bytes(geometry, batch, count, size):
    """K and V of one layer."""
    return 2 * batch * geometry.kv_heads * count * geometry.head_dim * size


def zone_tokens(count):
    return count - min(SINK, count // 4) - min(RING, count // 2)


def need_of_full(geometry, batch, count, size):
    layer = tokens_bytes(geometry, batch, count, size)
    return Need((geometry.layers + 1) * layer + DEVICE_SPARE, 0)


def need_of_index(geometry, batch, count, size, codec, cached_rows):
    zone = zone_tokens(count)
    layer = tokens_bytes(geometry, batch, count, size)
    rows = tokens_bytes(geometry, batch, zone, size)
    records = pariskv.Index.device_bytes(codec, zone, batch)
    kept = tokens_bytes(geometry, batch, count - zone + cached_rows, size)
    # The random tokens, and K beside V on their way to the host.
    device = geometry.layers * (records + kept) + 2 * layer + DEVICE_SPARE
    return Need(device, geometry.layers * rows, rows)


def need_of_cache(geometry, batch, count, dtype, options, device):
    usage = pariskv.cache_bytes(
        [count] * batch, geometry.layers, geometry.kv_heads, geometry.query_heads,
        geometry.head_dim, dtype=dtype, device=device, sequences=batch, capacity=count, deferred=1,
        fit_positions=0, value_dim=geometry.head_dim, **options,
    )  # fmt: skip
    layer = tokens_bytes(geometry, batch, count, dtype.itemsize)
    return Need(usage.total - usage.row_pages + 2 * layer + DEVICE_SPARE, usage.row_pages)


def trouble(need, room, shares):
    """Why it does not fit, with the numbers; None: it does."""
    host = need.host_layer if shares and need.host_layer else need.host
    found = []
    for name, wanted, there in (
        ("device memory beside the weights", need.device, room.device),
        ("pinned host memory", host, room.host),
    ):
        if wanted > there:
            found.append(f"needs {gib(wanted)} of {name}, there are {gib(there)}")
    return "; ".join(found) or None


def gib(count):
    return f"{count / GIB:.1f} GiB"


def largest_batch(wanted, need, room, shares):
    """(the largest batch up to `wanted` that fits, why `wanted` itself does not); batch 0: none.
    need: of a batch."""
    why = trouble(need(wanted), room, shares)
    batch = wanted
    while batch and trouble(need(batch), room, shares):
        batch -= 1
    return batch, why


def free_device_bytes(device):
    return torch.cuda.mem_get_info()[0] if device == "cuda" else free_host_bytes()


def free_host_bytes():
    """Of the machine or, if that is less, of the control group, but for HOST_SPARE."""
    found = [_available(), _group_room()]
    return max(0, min(room for room in found if room is not None) - HOST_SPARE)


def _available():
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def _group_room():
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            with open(f"/sys/fs/cgroup/{limit}") as file, open(f"/sys/fs/cgroup/{usage}") as used:
                return int(file.read()) - int(used.read())
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return None
