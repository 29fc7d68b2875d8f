"""ShadowKV-like: low-rank keys on the device, values in host memory, chunks by their mean key."""

import numpy as np

from bench.rules.base import (
    Answer,
    Rule,
    SettingError,
    best,
    dense_mask,
    pages_for,
    softmax,
)


def rotate_half(vectors, positions, theta, sign):
    """The rotary position encoding of rotate-half form; sign -1 takes it back."""
    half = vectors.shape[1] // 2
    angles = sign * positions[:, None] * theta ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles), np.sin(angles)
    a, b = vectors[:, :half], vectors[:, half:]
    return np.concatenate([a * cosine - b * sine, b * cosine + a * sine], axis=1)


class ShadowKV(Rule):
    """Keys as rank-r factors; a landmark (mean key) per chunk. A step takes the chunks with the
    best landmarks, rebuilds their keys, and reads their values from host memory. The `outliers`
    chunks whose keys are least like their landmark stay on the device exactly, beside the k rows.

    The paper factors keys before the rotary encoding, all KV heads joined, at rank 160 of 1,024.
    A trace has encoded keys of one KV head or a few, so each head is factored alone, at half its
    width; with theta (the model's rotary base) the encoding is taken back first and put on again,
    which a cut trace does not allow, its positions having a gap."""

    NAME = "shadowkv"
    PAPER = "Sun et al. 2024 (arXiv:2410.21465), section 4; chunks of 8, 48 outlier chunks"
    GROUP = "largest of the heads' softmax shares over landmarks"
    PARAMS = {
        "rank": (64, 1, 576),
        "chunk": (8, 1, 4096),
        "outliers": (48, 0, 65536),
        "theta": (0.0, 0.0, 1e9),
    }

    def __init__(self, geometry, **params):
        super().__init__(geometry, **params)
        if self.p.rank > geometry.head_dim:
            raise SettingError(f"rank={self.p.rank} is above head_dim {geometry.head_dim}")

    def plain(self, keys, first):
        """Keys without the rotary encoding, if its base is known."""
        if not self.p.theta:
            return keys
        return rotate_half(keys, first + np.arange(len(keys)), self.p.theta, -1)

    def build(self, keys, values, queries, positions):
        g = self.geometry
        regions = self.prefilled(keys)
        zone = keys[regions.sink_end : regions.zone_end].astype(np.float64)
        plain = self.plain(zone, regions.sink_end)
        _, vectors = np.linalg.eigh(plain.T @ plain)  # right singular vectors, ascending
        self.basis = vectors[:, ::-1][:, : self.p.rank].T  # [r, d]
        self.factors = np.empty((0, len(self.basis)))
        self.landmarks = np.empty((0, g.head_dim))
        self.grow(keys, regions)
        whole = len(zone) // self.p.chunk
        chunks = zone[: whole * self.p.chunk].reshape(whole, self.p.chunk, g.head_dim)
        marks = self.landmarks[:whole, None]
        norms = np.linalg.norm(chunks, axis=2) * np.linalg.norm(marks, axis=2)
        alike = ((chunks * marks).sum(axis=2) / np.maximum(norms, 1e-30)).min(axis=1)
        self.outliers = np.sort(best(-alike, self.p.outliers))

    def grow(self, keys, regions):
        held, chunk = len(self.factors), self.p.chunk
        if held == regions.zone:
            return
        whole = held // chunk
        zone = keys[regions.sink_end : regions.zone_end].astype(np.float64)
        fresh = self.plain(zone[held:], regions.sink_end + held)
        self.factors = np.concatenate([self.factors, fresh @ self.basis.T])
        marks = [zone[i : i + chunk].mean(axis=0) for i in range(whole * chunk, len(zone), chunk)]
        self.landmarks = np.concatenate([self.landmarks[:whole], np.stack(marks)])

    def rebuilt(self, rows, sink_end):
        keys = self.factors[rows - sink_end] @ self.basis
        return rotate_half(keys, rows, self.p.theta, 1) if self.p.theta else keys

    def rows_of(self, chunks, regions):
        rows = (chunks[:, None] * self.p.chunk + np.arange(self.p.chunk)).ravel()
        return regions.sink_end + np.sort(rows[rows < regions.zone])

    def select(self, query, keys, values, regions):
        self.grow(keys, regions)
        g = self.geometry
        query = query.astype(np.float64)
        exact = self.rows_of(self.outliers, regions)
        chosen = np.arange(0)
        if len(self.landmarks):
            shares = softmax(g.scale * (query @ self.landmarks.T)).max(axis=0)
            shares[self.outliers] = -1
            count = min(pages_for(g.k, self.p.chunk), len(shares) - len(self.outliers))
            chosen = best(shares, count)
        rows = self.rows_of(chosen, regions)
        attended = keys.astype(np.float64)
        attended[rows] = self.rebuilt(rows, regions.sink_end)
        mask = dense_mask(regions)
        mask[rows] = mask[exact] = True
        weights = softmax(np.where(mask, g.scale * (query @ attended.T), -np.inf))
        factors = 2 * (len(rows) + g.head_dim) * len(self.basis)
        read = len(self.landmarks) * g.key_bytes + factors + len(exact) * g.row_bytes
        both = np.sort(np.concatenate([rows, exact]))
        return Answer(both, read, len(rows) * g.value_bytes, weights=weights)

    def memory(self, zone):
        g, p = self.geometry, self.p
        device = pages_for(zone, p.chunk) * g.key_bytes + 2 * p.rank * (zone + g.head_dim)
        return device + p.outliers * p.chunk * g.row_bytes, zone * g.value_bytes

    @classmethod
    def for_budget(cls, budget, geometry):
        return {"chunk": int(pages_for(geometry.key_bytes, budget))}
