"""Where a step's tokens are kept and how it attends: `Full` (torch, K and V on the device),
`OverIndex` (pariskv.Index, K and V of the zone in host memory), `OverCache` (pariskv.Cache, which
appends).

`Full` and `OverIndex` hold as many tokens from step to step: a new one takes the place of the
oldest of the newest RING. `OverCache` grows. All layers are filled with the same random tokens,
each in memory of its own, so that no layer finds another's bytes in the device's cache."""

import ctypes

import pariskv
import torch
from pariskv import _library
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SINK, RING = 128, 768  # tokens attended in full: the first, the newest
SAMPLE = 65536  # keys that a codec is fitted to
PINNED = 2  # PKV_ALLOC_HOST
CHUNK = 16384  # tokens that a cache is given at a time
FORMS = {
    "cudnn grouped": (SDPBackend.CUDNN_ATTENTION, "grouped"),
    "cudnn by head": (SDPBackend.CUDNN_ATTENTION, "by_head"),
    "flash grouped": (SDPBackend.FLASH_ATTENTION, "grouped"),
    "flash by head": (SDPBackend.FLASH_ATTENTION, "by_head"),
}
CPU_FORMS = {
    "cpu grouped": (SDPBackend.MATH, "grouped"),
    "cpu by head": (SDPBackend.MATH, "by_head"),
}


class Tokens:
    """K and V [b, h, n, d] of a layer: channels of different spread around a mean of each head."""

    def __init__(self, geometry, batch, count, dtype, device, seed=1):
        self.batch, self.count = batch, count
        self.sink, self.ring = min(SINK, count // 4), min(RING, count // 2)
        chance = torch.Generator(device).manual_seed(seed)

        def normal(*shape):
            made = torch.empty(shape, dtype=dtype, device=device)
            return made.normal_(generator=chance)

        heads, width = geometry.kv_heads, geometry.head_dim
        spread = (normal(heads, 1, width) * 0.5).exp()
        self.keys = normal(batch, heads, count, width).mul_(spread).add_(normal(heads, 1, width))
        self.values = normal(batch, heads, count, width)
        self.queries = normal(geometry.query_heads, 64, width)

    @property
    def zone(self):
        return slice(self.sink, self.count - self.ring)

    @property
    def zone_tokens(self):
        return self.count - self.sink - self.ring


class Attention:
    """What steps ask of each kind, and of some alone."""

    def begin(self, positions):
        """At the begin of every step, captured with it."""

    def rows_found(self):
        """(rows that were looked up in row caches, rows found there) so far."""
        return 0, 0

    def close(self):
        """Gives memory of the library back."""


class Full(Attention):
    """Over all tokens, in one of FORMS."""

    def __init__(self, geometry, tokens):
        self.kv_heads, self.tokens = geometry.kv_heads, tokens
        self.pairs = [(tokens.keys.clone(), tokens.values.clone()) for _ in range(geometry.layers)]
        self.first = tokens.count - tokens.ring
        self.backend, self.form = None, "grouped"

    def choose(self, form):
        self.backend, self.form = {**FORMS, **CPU_FORMS}[form]

    def begin(self, positions):
        self.slot = (positions[:1] - self.tokens.count) % self.tokens.ring + self.first

    def __call__(self, layer, query, key, value):
        keys, values = self.pairs[layer]
        keys.index_copy_(2, self.slot, key.unsqueeze(2))
        values.index_copy_(2, self.slot, value.unsqueeze(2))
        with sdpa_kernel(self.backend):
            if self.form == "by_head":
                rows = query.unsqueeze(2)
                return scaled_dot_product_attention(rows, keys, values, enable_gqa=True).squeeze(2)
            # The query heads of a group are rows of one.
            rows = query.unflatten(1, (self.kv_heads, -1))
            return scaled_dot_product_attention(rows, keys, values).flatten(1, 2)

    def usage(self):
        return {"kv_device_bytes": sum(k.nbytes + v.nbytes for k, v in self.pairs)}


class Zone:
    """Host memory that the device reads, from which layers get their rows: K and V of a token side
    by side. One piece, filled anew for every shape."""

    def __init__(self, size, dtype, device):
        """`device`: a pariskv.Device."""
        self.dtype, self.device, self.address = dtype, device, None
        count = size // dtype.itemsize
        if device.is_gpu:
            self.memory = self._pinned(count)
        else:
            self.memory = torch.empty(count, dtype=dtype)

    def _pinned(self, count):
        size, self.address = count * self.dtype.itemsize, ctypes.c_void_p()
        place = ctypes.byref(self.address)
        kind = ctypes.c_int32(PINNED)
        _library.call("pkv_device_alloc", self.device, kind, ctypes.c_int64(size), place)
        raw = (ctypes.c_uint8 * size).from_address(self.address.value)
        return torch.frombuffer(raw, dtype=self.dtype)

    @property
    def nbytes(self):
        return self.memory.nbytes

    def close(self):
        self.memory = None
        if self.address is not None:
            _library.call("pkv_device_free", self.device, self.address)
            self.address = None

    def layers(self, tokens, wanted):
        """Rows [b, h, zone, 2, d] of at most `wanted` layers."""
        pair = torch.stack([tokens.keys[:, :, tokens.zone], tokens.values[:, :, tokens.zone]], 3)
        fits = min(wanted, self.memory.numel() // pair.numel())
        whole = self.memory[: fits * pair.numel()].view(fits, *pair.shape)
        for rows in whole:
            rows.copy_(pair, non_blocking=True)
        return list(whole)


class OverIndex(Attention):
    """A pariskv.Index for each layer. Sink and newest tokens lie on the device."""

    def __init__(self, geometry, tokens, rows, options):
        """rows: of as many layers as there is memory for, which take turns."""
        self.rows = rows
        zone = tokens.keys[:, :, tokens.zone], tokens.values[:, :, tokens.zone]
        sample = [part[0, :, :SAMPLE] for part in zone]
        codec = pariskv.Codec.fit(sample[0], tokens.queries, sample[1], **options)
        self.layers, self.dense, self.caches = [], [], None
        parts = slice(0, tokens.sink), slice(tokens.count - tokens.ring, tokens.count)
        for _ in range(geometry.layers):
            index = pariskv.Index(codec, tokens.zone_tokens, tokens.batch)
            for sequence in range(tokens.batch):
                index.append(zone[0][sequence], zone[1][sequence], sequence)
            self.layers.append(index)
            self.dense.append([(tokens.keys[:, :, part].clone(), tokens.values[:, :, part].clone())
                               for part in parts])  # fmt: skip
        self.count, self.ring, self.dtype = tokens.count, tokens.ring, tokens.keys.dtype

    def cache_rows(self, rows):
        """Further steps have row caches of so many rows; 0: none."""
        self.caches = [index.row_cache(rows, self.dtype) for index in self.layers] if rows else None

    def begin(self, positions):
        self.slot = (positions[:1] - self.count) % self.ring

    def __call__(self, layer, query, key, value):
        sink, (keys, values) = self.dense[layer]
        keys.index_copy_(2, self.slot, key.unsqueeze(2))
        values.index_copy_(2, self.slot, value.unsqueeze(2))
        rows = self.rows[layer % len(self.rows)]
        cache = self.caches[layer] if self.caches else None
        return self.layers[layer].step(
            query, rows[..., 0, :], rows[..., 1, :], dense=[sink, (keys, values)], row_cache=cache
        )

    def usage(self):
        dense = sum(part.nbytes for layer in self.dense for pair in layer for part in pair)
        found = {
            "records_device_bytes": sum(index.stats().device_bytes for index in self.layers),
            "kv_device_bytes": dense,
            "kv_host_bytes": sum(rows.nbytes for rows in self.rows),
            "row_cache_device_bytes": 0,
        }
        if self.caches:
            found["row_cache_device_bytes"] = sum(c.stats().device_bytes for c in self.caches)
        return found

    def rows_found(self):
        stats = [cache.stats() for cache in self.caches or ()]
        return sum(one.looked_up for one in stats), sum(one.found for one in stats)

    def close(self):
        for handle in [*(self.caches or ()), *self.layers]:
            handle.close()


class OverCache(Attention):
    """One pariskv.Cache of all layers; a step appends its token. Encoding waits for `flush`."""

    def __init__(self, geometry, tokens, room, options, device=None):
        """room: steps to come."""
        self.sequences = list(range(tokens.batch))
        length = tokens.count + room
        self.cache = pariskv.Cache(
            geometry.layers, geometry.kv_heads, geometry.query_heads, geometry.head_dim,
            dtype=tokens.keys.dtype, device=device, sequences=tokens.batch, capacity=length,
            deferred=1, fit_positions=0, value_dim=geometry.head_dim, **options,
        )  # fmt: skip
        sample = [part[0, :, :SAMPLE] for part in (tokens.keys, tokens.values)]
        codec = pariskv.Codec.fit(sample[0], tokens.queries, sample[1], device=device, **options)
        self.cache.reserve(length, tokens.batch * length, tokens.batch)
        for layer in range(geometry.layers):
            self.cache.import_codec(layer, codec)
        for _ in self.sequences:
            self.cache.add()
        for layer in range(geometry.layers):
            for sequence in self.sequences:
                self._fill(layer, sequence, tokens)
        self.cache.flush()

    def _fill(self, layer, sequence, tokens):
        rows = [part[sequence].transpose(0, 1) for part in (tokens.keys, tokens.values)]
        for begin in range(0, tokens.count, CHUNK):
            parts = [part[begin : begin + CHUNK] for part in rows]
            self.cache.append(layer, *parts, sequences=[sequence])

    def __call__(self, layer, query, key, value):
        return self.cache.step(layer, query, key, value, sequences=self.sequences)

    def grow(self, tokens):
        """An interval of further tokens in every layer, so that a flush has something to do."""
        for layer in range(self.cache.layers):
            for sequence in self.sequences:
                self._fill(layer, sequence, tokens)

    def advance(self):
        """Before every launch of a captured step."""
        self.cache.advance(sequences=self.sequences)

    def usage(self):
        usage = self.cache.usage()
        return {
            "records_device_bytes": usage.total - usage.row_pages,
            "kv_device_bytes": 0,
            "kv_host_bytes": usage.row_pages,
        }

    def close(self):
        self.cache.close()
