"""pariskv: cheap long-context decoding over a KV cache that may lie in host memory.

    cache = pariskv.Cache(layers=1, kv_heads=2, query_heads=8, head_dim=64, dtype="float32")
    sequence = cache.add()
    cache.append(0, keys, values, queries)             # [n, 2, 64], [n, 2, 64], [n, 8, 64]
    output = cache.step(0, query, key, value)          # [1, 8, 64]

`Codec` and `Index` are the parts for those who keep K and V themselves. Models of Hugging Face
transformers: `pariskv.hf`; sequences or heads on several ranks: `pariskv.distributed`.

Tensors are numpy arrays, torch tensors, or objects with __array_interface__ or DLPack, on the CPU
or, with a backend for it, on a GPU; none is copied. Shapes: b entries of a batch, n tokens, h KV
heads, hq query heads, d head_dim, dv value_dim. Work on a GPU is enqueued on torch's current stream
and not awaited. Errors are exceptions with the library's text (`pariskv.Error`)."""

from __future__ import annotations

from typing import Any

from ._cache import Cache
from ._cache_shape import CacheHits, CacheStats, Regions, Usage, cache_bytes
from ._codec import Codec, Geometry
from ._device import Backend, Device, Option, backends, device, devices, options
from ._index import Hits, Index, IndexStats
from ._library import (
    AbortedError,
    AlreadyExistsError,
    CancelledError,
    DataLossError,
    Error,
    FailedPreconditionError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnavailableError,
    UnimplementedError,
    library_path,
    version,
)
from ._merge import merge
from ._row_cache import RowCache, RowCacheStats

__all__ = [
    "AbortedError",
    "AlreadyExistsError",
    "Backend",
    "Cache",
    "CacheHits",
    "CacheStats",
    "CancelledError",
    "Codec",
    "DataLossError",
    "Device",
    "Error",
    "FailedPreconditionError",
    "Geometry",
    "Hits",
    "Index",
    "IndexStats",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "Option",
    "OutOfRangeError",
    "Regions",
    "ResourceExhaustedError",
    "RowCache",
    "RowCacheStats",
    "UnavailableError",
    "UnimplementedError",
    "Usage",
    "attend",
    "backends",
    "cache_bytes",
    "device",
    "devices",
    "library_path",
    "merge",
    "options",
    "retrieve",
    "version",
]


def retrieve(index: Index, query: Any, **options: Any) -> Hits:
    """`index.retrieve(query, ..)`: the k best keys for query [b, hq, d]."""
    return index.retrieve(query, **options)


def attend(index: Index, query: Any, keys: Any, values: Any, **options: Any) -> Any:
    """`index.step(query, keys, values, ..)`: the attention output [b, hq, dv] of a whole step."""
    return index.step(query, keys, values, **options)
