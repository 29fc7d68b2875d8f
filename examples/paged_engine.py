"""A minimal engine with paged K and V, as vLLM and SGLang have them, over pariskv's page tables.

    python examples/paged_engine.py

Requests join and leave a running batch; their K and V lie in pages of one pool per layer, which the
engine hands out and takes back; requests with the same prompt share its full pages. pariskv is
given block tables, and holds key records alone. The "model" is one projection per layer with
random weights: what counts here is who owns what. Needs numpy."""

import argparse
import sys

import numpy as np
import pariskv

PAGE = 16  # tokens; divides the cache's sink


class PagePool:
    """Pages of K and V of every layer, and how many requests use each."""

    def __init__(self, layers, pages, kv_heads, head_dim):
        shape = layers, pages, PAGE, kv_heads, head_dim  # nhd
        self.keys, self.values = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.users = np.zeros(pages, np.int32)

    def take(self):
        free = np.flatnonzero(self.users == 0)
        if not len(free):
            raise MemoryError(f"all {len(self.users)} pages are in use")
        self.users[free[0]] = 1
        return int(free[0])

    def write(self, layer, table, start, keys, values):
        """Rows [t, h, d] of the tokens from `start` on."""
        positions = np.arange(start, start + len(keys))
        pages, slots = np.asarray(table)[positions // PAGE], positions % PAGE
        self.keys[layer, pages, slots], self.values[layer, pages, slots] = keys, values


class Request:
    def __init__(self, prompt, new_tokens):
        self.tokens, self.wanted = list(prompt), len(prompt) + new_tokens
        self.table, self.sequence, self.stored = [], None, 0


class Engine:
    """`step` brings every running request one token further."""

    def __init__(self, model, pages=256, sequences=8, **options):
        self.model = model
        self.pool = PagePool(model.layers, pages, model.kv_heads, model.head_dim)
        shape = model.layers, model.kv_heads, model.query_heads, model.head_dim
        self.cache = pariskv.Cache(*shape, dtype="float32", sequences=sequences, **options)
        for layer in range(model.layers):
            pools = self.pool.keys[layer], self.pool.values[layer]
            self.cache.bind_pool(layer, *pools, layout="nhd")
        self.running = []

    def join(self, request, like=None):
        """`like`: a running request whose first tokens are the same; full pages are shared."""
        shared = 0
        if like is not None:
            pairs = zip(request.tokens[:-1], like.tokens[: like.stored])
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
            shared = min(len(request.tokens) - 1, like.stored) if same is None else same
            shared -= shared % PAGE
        if shared:
            request.sequence = self.cache.fork(like.sequence, shared)
            request.table = like.table[: shared // PAGE]
            self.pool.users[request.table] += 1
            request.stored = shared
        else:
            request.sequence = self.cache.add()
        self.running.append(request)

    def leave(self, request):
        self.cache.remove(request.sequence)
        self.pool.users[request.table] -= 1
        self.running.remove(request)

    def step(self):
        """Prefill of those that joined, one token of the others; those that are done leave."""
        for request in self.running:
            while len(request.table) * PAGE < len(request.tokens):
                request.table.append(self.pool.take())
        counts = [len(r.tokens) - r.stored for r in self.running]
        hidden = np.concatenate([self.model.embed(r.tokens[r.stored :]) for r in self.running])
        for layer in range(self.model.layers):
            query, keys, values = self.model.project(layer, hidden)
            self.store(layer, counts, query, keys, values)
            hidden = hidden + self.model.output(layer, self.attend(layer, counts, query))
        ends = np.cumsum(counts) - 1
        for request, token in zip(list(self.running), self.model.choose(hidden[ends])):
            request.stored = len(request.tokens)
            request.tokens.append(int(token))
            if len(request.tokens) >= request.wanted:
                self.leave(request)

    def store(self, layer, counts, query, keys, values):
        at = 0
        for request, count in zip(self.running, counts):
            rows = keys[at : at + count], values[at : at + count]
            self.pool.write(layer, request.table, request.stored, *rows)
            at += count
        self.cache.append_pages(
            layer,
            [r.sequence for r in self.running],
            np.cumsum([0] + [len(r.table) for r in self.running]),
            np.concatenate([r.table for r in self.running]),
            [(len(r.tokens) - 1) % PAGE + 1 for r in self.running],
            queries=query,
        )

    def attend(self, layer, counts, query):
        """Prefills attend exactly, single tokens through the index: two calls."""
        out = np.empty_like(query)
        owners = np.repeat(np.arange(len(counts)), counts)
        many = np.asarray(counts) > 1
        for exact in (True, False):
            chosen = np.flatnonzero(many == exact)
            rows = np.flatnonzero(np.isin(owners, chosen))
            if len(rows):
                batch = {
                    "sequences": [self.running[i].sequence for i in chosen],
                    "counts": [counts[i] for i in chosen],
                }
                out[rows] = self.cache.attend(layer, query[rows], exact=exact, **batch)
        return out


class ToyModel:
    """Random projections around attention; positions are rotations, as in real models."""

    def __init__(self, layers=2, kv_heads=2, query_heads=8, head_dim=32, words=200, seed=0):
        self.layers, self.kv_heads, self.query_heads = layers, kv_heads, query_heads
        self.head_dim, width = head_dim, query_heads * head_dim
        rng = np.random.default_rng(seed)
        self.words, self.answers = rng.standard_normal((2, words, width), np.float32)
        heads = query_heads + 2 * kv_heads
        scale = np.float32(1.5 / np.sqrt(width))
        self.inner = rng.standard_normal((layers, width, heads * head_dim), np.float32) * scale
        self.outer = rng.standard_normal((layers, width, width), np.float32) * scale

    def embed(self, tokens):
        return self.words[np.asarray(tokens)]

    def project(self, layer, hidden):
        heads = (hidden @ self.inner[layer]).reshape(len(hidden), -1, self.head_dim)
        return np.split(heads, [self.query_heads, self.query_heads + self.kv_heads], 1)

    def output(self, layer, attended):
        return attended.reshape(len(attended), -1) @ self.outer[layer]

    def choose(self, hidden):
        return (hidden @ self.answers.T).argmax(1)


def serve(engine, prompts, new_tokens):
    """Tokens of each prompt: all join one behind the other while the earlier ones run."""
    requests = [Request(prompt, new_tokens) for prompt in prompts]
    for number, request in enumerate(requests):
        engine.join(request, engine.running[0] if engine.running else None)
        engine.step()
        if number == 0:
            engine.step()
    while engine.running:
        engine.step()
    return [request.tokens[len(prompt) :] for request, prompt in zip(requests, prompts)]


def main(argv=None):
    parser = argparse.ArgumentParser(prog="paged_engine.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("--prompt", type=int, default=1500, help="tokens of the longest prompt")
    parser.add_argument("--tokens", type=int, default=32, help="new tokens per request")
    parser.add_argument("--k", type=int, default=100)
    options = parser.parse_args(argv)
    rng = np.random.default_rng(1)
    long = rng.integers(0, 200, options.prompt).tolist()
    prompts = [long, long[: options.prompt // 2] + [1, 2, 3], rng.integers(0, 200, 40).tolist()]
    shape = dict(sink=64, local=128, interval=128, dense_below=256, page_tokens=128)
    engine = Engine(ToyModel(), k=options.k, **shape)
    served = serve(engine, prompts, options.tokens)
    every = serve(Engine(ToyModel(), k=65536, candidates=1.0, **shape), prompts, options.tokens)
    for prompt, found, wanted in zip(prompts, served, every):
        equal = sum(a == b for a, b in zip(found, wanted))
        print(f"{len(prompt):5} tokens of prompt, {len(found)} new: {found[:8]} ..; "
              f"{equal} as with all rows")  # fmt: skip
    print(f"pages in use at the end: {int((engine.pool.users > 0).sum())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
