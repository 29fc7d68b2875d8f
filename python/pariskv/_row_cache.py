"""RowCache: the K and V rows that steps of an index fetched last, in device memory."""

from __future__ import annotations

import ctypes as c
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _structs as s
from ._library import Handle, call
from ._tensors import dtype_number

if TYPE_CHECKING:
    from ._index import Index


class RowCacheStats(NamedTuple):
    rows: int  # per sequence and KV head; 0: the backend has no use for a cache
    device_bytes: int
    looked_up: int  # rows wanted by steps since the cache was made
    found: int  # of these


class RowCache(Handle):
    """Made by `Index.row_cache`, given to `Index.step`. What is found there changes no bit of a
    step. For one step at a time, on streams that wait for each other. On the CPU, which reads rows
    in place, it holds nothing."""

    def __init__(self, index: Index, rows: int, dtype: Any = "bfloat16") -> None:
        super().__init__("pkv_row_cache_destroy", index)
        self.device = index.device
        kind, stream = s.I32(dtype_number(dtype)), self.device.stream()
        call("pkv_row_cache_create", index, stream, kind, s.I32(rows), self.out)

    def drop(self, sequence: int = 0) -> None:
        """Forgets the rows of a sequence: to be called where rows change at positions that were
        fetched. A captured step does not notice `Index.reset` by itself."""
        call("pkv_row_cache_drop", self, self.device.stream(), s.I32(sequence))

    def stats(self) -> RowCacheStats:
        """Waits for the stream."""
        found = s.RowCacheStats()
        call("pkv_row_cache_stats_sync", self, self.device.stream(), c.byref(found))
        return RowCacheStats(*(getattr(found, name) for name in RowCacheStats._fields))
