"""Retrieve, vote and select against searches of FAISS in the same keys."""

import functools

import torch
from tqdm import tqdm

from bench.compare import ours
from bench.compare.context import HEAD_DIM, KV_HEADS
from bench.compare.options import FAISS
from bench.compare.room import DisagreementError
from bench.compare.section import GIB, Section, layer_count

try:
    from bench.compare import faiss_search
except ImportError as error:
    faiss_search, faiss_error = None, error
PILOT_KEYS = 4096
TOKENS = 8


class SearchSection(Section):
    def __init__(self, room, n, share):
        # The other half is for the keys in f32 and FAISS's copies of them.
        layers = layer_count(n, room.options.layers, room.options.memory * GIB / 2)
        super().__init__(room, n, share, layers)
        self.found = ours.candidate_count(n, share)
        self.keys = self.contexts[0].part("zone")[0].float().numpy()
        self.head_queries = ours.one_per_head(self.queries)[:, 0].float().numpy()
        self.best = {}
        self.pilots = []
        self.add_retrieve()
        self.add_read()
        wanted = [name for name in FAISS if room.wants(name)]
        for name in tqdm(wanted, desc=f"FAISS indices, n = {n}", leave=False, disable=None):
            self.add_peer(name)

    def add_retrieve(self):
        shape = {
            "query_heads": KV_HEADS,
            "tail": "drop",
            "bytes": KV_HEADS * self.n * ours.VOTE_BYTES,
        }
        retrieve = self.add_ours(
            "retrieve",
            ours.RetrieveMethod,
            is_baseline=True,
            setting="vote, exact selection, rerank of all candidates",
            **shape,
        )
        candidates = retrieve.run(0).clone()
        self.tell_recall(candidates.numpy(), joined=False)
        together = {"batch": TOKENS, "work": TOKENS * KV_HEADS * self.n, **shape}
        several = f"{TOKENS} query tokens of a sequence at once"

        def add(name, method, setting, **fields):
            found = self.add_ours(name, method, setting=setting, **fields).run(0)
            if not torch.equal(found, candidates):
                raise DisagreementError(f"n={self.n}: {name} finds other candidates than retrieve")
            self.tell_recall(candidates.numpy(), joined=False)

        tokens = functools.partial(ours.RetrieveMethod, tokens=TOKENS)
        add(f"retrieve {TOKENS} q", tokens, f"as retrieve, {several}", stage="retrieve", **together)
        if not self.room.wants("vote+select"):
            return
        alone = functools.partial(ours.RetrieveMethod, k=0)
        nothing = {"stage": "vote+select", "k": 0}
        add("candidates", alone, "vote and exact selection", **nothing, **shape)
        tokens = functools.partial(tokens, k=0)
        add(f"candidates {TOKENS} q", tokens, f"as candidates, {several}", **nothing, **together)
        stages = "two single stages, votes written and read"
        add("vote+select", ours.VoteSelectMethod, stages, stage="vote+select", **shape)

    def tell_recall(self, found, joined):
        """Of the method that was added last, for the first query of every head it has."""
        if faiss_search is None:
            return
        if not self.best:
            queries = self.head_queries[0]
            self.best[True] = faiss_search.best_keys(self.keys.reshape(-1, HEAD_DIM), queries)
            pairs = zip(self.keys, queries)
            self.best[False] = [faiss_search.best_keys(k, q[None])[0] for k, q in pairs]
        value = faiss_search.recall(found, self.best[joined])
        self.methods[-1].record["candidate_recall"] = round(value, 4)

    def add_peer(self, name):
        reason = faiss_search.missing(name) if faiss_search else str(faiss_error)
        if reason:
            self.room.leave_out(name, self.n, reason)
            return
        for keys in (self.keys.reshape(1, -1, HEAD_DIM), self.keys):
            label, limit = f"{name} {len(keys)} x {keys.shape[1]}", self.room.options.hnsw_limit
            if name == "hnsw" and keys.shape[1] > limit:
                reason = f"above --hnsw-limit {limit}: building takes minutes"
                self.room.leave_out(label, self.n, reason)
                continue
            faiss_search.faiss.omp_set_num_threads(self.room.options.threads)
            indices = [faiss_search.KINDS[name].build(part, self.found) for part in keys]
            if len(indices) == 1:
                self.add_joined(name, label, indices[0])
            else:
                self.add_heads(name, label, indices)

    def add_joined(self, name, label, index):
        """One query, and one of each head, in the index over the keys of all heads."""
        threads, pilot_index = self.room.options.threads, self.pilot_index()
        for count in (1, KV_HEADS):
            queries = self.head_queries[:, :count].copy()
            search = faiss_search.Search(index, queries, self.found, threads)
            pilot = faiss_search.Search(pilot_index, queries, 1, threads)
            self.add_search(name, f"{label}, {count} q", [index], search, pilot, count)

    def add_heads(self, name, label, indices):
        """One query in the index of its head."""
        threads, queries = self.room.options.threads, self.head_queries
        search = faiss_search.HeadSearch(indices, queries, self.found, threads)
        pilot = faiss_search.HeadSearch(
            [self.pilot_index()] * KV_HEADS, queries, 1, threads, search.pool
        )
        self.add_search(name, label, indices, search, pilot, KV_HEADS)

    def pilot_index(self):
        return faiss_search.KINDS["flat"].build(self.keys[0, :PILOT_KEYS], 1)

    def add_search(self, name, label, indices, search, pilot, queries):
        kind, keys = faiss_search.KINDS[name], indices[0].ntotal
        record = self.record(
            label,
            "faiss",
            "vote+select",
            k=self.found,
            candidates=self.found / keys,
            dtype="f32",
            query_heads=queries,
            work=keys * queries,
            bytes=keys * len(indices) * kind.key_bytes or None,
            setting=f"{kind.index} {kind.setting.format(index=indices[0])}",
        )
        self.methods.append(self.method(record, search, pilot))
        self.tell_recall(search.run(0), joined=len(indices) == 1)

    def results(self):
        title = f"search, {KV_HEADS} x {self.n} keys, {self.found} found each"
        return self.room.measure(title, self.methods)
