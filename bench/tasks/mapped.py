"""An experiment: a cache whose keys and queries go through a linear map of each KV head, fitted to
the prompt (bench/maps.py), before the library sees them."""

import torch

from bench.maps import fitted

from .sparse import SparseCache

LEAST_ZONE = 1024


class MappedCache(SparseCache):
    """Rows are kept as float32, so that the map costs no further rounding."""

    def begin(self, batch):
        super().begin(batch)
        self.maps = {}
        self.batch = batch

    def rows(self, number, row, query, key, value):
        """(K, V, queries) of a prompt, [t, heads, d]; the map of this layer and row is made."""
        sink, local = (self.settings.options.get(*pair) for pair in (("sink", 128), ("local", 512)))
        zone = slice(sink, key.shape[2] - local)
        width = key.shape[3]
        if zone.stop - zone.start < LEAST_ZONE:
            mean = key.new_zeros(key.shape[1], 1, width).double()
            found = torch.eye(width, device=key.device).double().expand(key.shape[1], -1, -1)
        else:
            mean, found = fitted(key[0, :, zone], query[0, :, -128:])
        held = self.maps.setdefault(number, [None] * self.batch)
        held[row] = [x.float() for x in (mean, found.transpose(1, 2), torch.linalg.inv(found))]
        mapped = self.mapped(query, key, [x[None] for x in held[row]])
        return [tensor[0].transpose(0, 1) for tensor in (mapped[1], value.float(), mapped[0])]

    def mapped(self, query, key, maps):
        mean, found, inverse = maps
        asked = query.float().unflatten(1, (key.shape[1], -1)) @ inverse[:, :, None]
        return asked.flatten(1, 2), (key.float() - mean) @ found

    def attend_layer(self, number, query, key, value, mask, scale):
        held = self.maps[number]
        if isinstance(held, list):
            held = self.maps[number] = tuple(torch.stack(parts) for parts in zip(*held))
        asked, keys = self.mapped(query, key, held)
        out = super().attend_layer(number, asked, keys, value.float(), mask, scale)
        return out.to(query.dtype)
