"""Tokens per second and memory of a model on a GPU: full attention (SDPA) and pariskv under the
same loops of transformers.

    python -m bench.hf_gpu --geometry qwen2.5-1.5b --lengths 32768,131072 --json

A geometry has random weights, --model is a folder. The cache is filled with random K, V and
queries, of which the speed does not depend. Loops: `generate` (greedy, with all that it does per
token) and `forward` (the model and an argmax, nothing awaited). Methods: `full` (DynamicCache),
`pariskv`, and both as a CUDA graph: `pariskv-captured` (enable(captured=..)), `full-captured` (K
and V of a fixed length; the least that full attention takes, nothing that transformers offers)."""

import argparse
import gc
import json
import statistics
import sys
import time
import traceback

import pariskv.hf
import torch
import transformers
from tqdm import tqdm
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from bench.kernels import spent_by_kind

GEOMETRIES = {
    "qwen2.5-1.5b": ("Qwen2Config", dict(
        vocab_size=151936, hidden_size=1536, intermediate_size=8960, num_hidden_layers=28,
        num_attention_heads=12, num_key_value_heads=2, tie_word_embeddings=True)),
    "llama3-8b": ("LlamaConfig", dict(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=False)),
    "tiny": ("LlamaConfig", dict(
        vocab_size=97, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=False)),
}  # fmt: skip
METHODS = ("full", "full-captured", "pariskv", "pariskv-captured")
WARM = 6  # tokens of each loop that are not counted: the prompt's last, warming up, the capture
CHUNK = 8192  # tokens that are appended at a time


def load(options):
    if options.model:
        made = AutoModelForCausalLM.from_pretrained(options.model, dtype=options.dtype)
        return made.to(options.device).eval()
    name, fields = GEOMETRIES[options.geometry]
    room = max(options.lengths) + options.tokens + 64
    config = getattr(transformers, name)(**fields, max_position_embeddings=room, pad_token_id=0)
    with torch.device(options.device):
        return AutoModelForCausalLM.from_config(config, dtype=options.dtype).eval()


def unmasked(module, query, key, value, attention_mask, scaling=None, **_):
    """One query token sees everything; as a graph is captured, transformers would make a mask."""
    out = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2), None


class FixedLayer(DynamicLayer):
    """The newest token's K and V are written over the last ones."""

    def update(self, key_states, value_states, *_, **__):
        if not self.is_initialized:
            return super().update(key_states, value_states)
        self.keys[:, :, -1:].copy_(key_states)
        self.values[:, :, -1:].copy_(value_states)
        return self.keys, self.values

    def get_mask_sizes(self, *_):
        return self.keys.shape[2], 0


class Bench:
    def __init__(self, model, options):
        self.model, self.options = model, options
        self.shape = pariskv.hf.shape_of(model.config)
        self.is_gpu = options.device != "cpu"
        self.name = pariskv.hf._cache_argument(model)
        model.generation_config.eos_token_id = None

    def random(self, tokens, heads):
        shape = self.options.batch, heads, tokens, self.shape.head_dim
        return torch.randn(shape, dtype=self.options.dtype, device=self.options.device)

    def settings(self, method, length):
        chosen = dict(pair.split("=") for pair in self.options.set)
        if method == "pariskv-captured":
            chosen["captured"] = length + self.options.tokens + 64
        return chosen

    def full(self, length, layer=None):
        cache = DynamicCache() if layer is None else Cache(layer_class_to_replicate=layer)
        for number in range(self.shape.layers):
            keys, values = (self.random(length, self.shape.kv_heads) for _ in "kv")
            cache.update(keys, values, number)
        return cache

    def sparse(self, method, length):
        cache = pariskv.hf.Cache(self.model, **self.settings(method, length))
        heads = self.shape.kv_heads, self.shape.kv_heads, self.shape.query_heads
        for number in range(self.shape.layers):
            for begin in range(0, length, CHUNK):
                tokens = min(CHUNK, length - begin)
                parts = [self.random(tokens, count) for count in heads]
                rows = [part.transpose(1, 2).flatten(0, 1) for part in parts]
                sequences = cache._open(parts[0], self.options.batch, self.shape.head_dim**-0.5)
                counts = dict(sequences=sequences.slots, counts=[tokens] * self.options.batch)
                sequences.store.append(number, *rows, **counts)
        cache.set_length(length)
        return cache

    def start(self, method, length):
        pariskv.hf.disable(self.model)
        self.model.set_attn_implementation("unmasked" if method == "full-captured" else "sdpa")
        if method == "full":
            return self.full(length)
        if method == "full-captured":
            return self.full(length, FixedLayer)
        cache = self.sparse(method, length)
        pariskv.hf.enable(self.model, **self.settings(method, length))
        return cache

    def memory(self, cache):
        """(bytes on the device, bytes in host memory) of K, V and what goes with them."""
        if not isinstance(cache, pariskv.hf.Cache):
            return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers), 0
        usage = cache.usage()
        rows = usage.row_pages
        return (usage.total - rows, rows) if self.is_gpu else (0, usage.total)

    # ---- loops: milliseconds of every token that counts

    def generate(self, cache, length):
        ids = torch.ones(self.options.batch, length + 1, dtype=torch.long)
        ids = ids.to(self.options.device)
        times = []

        def note(found, *_, **__):
            self.wait()
            times.append(time.perf_counter())
            return torch.zeros(len(found), dtype=torch.bool, device=found.device)

        self.model.generate(
            ids, attention_mask=torch.ones_like(ids), past_key_values=cache, do_sample=False,
            max_new_tokens=self.options.tokens, pad_token_id=0,
            stopping_criteria=transformers.StoppingCriteriaList([note]),
        )  # fmt: skip
        return [(b - a) * 1e3 for a, b in zip(times, times[1:])][WARM:]

    def forward(self, cache, length, is_fixed=False):
        """Means of a few tokens each, since nothing is awaited between."""
        ids = torch.ones(self.options.batch, 1, dtype=torch.long, device=self.options.device)
        position = torch.full_like(ids, length)

        def step():
            given = {"input_ids": ids, "position_ids": position, self.name: cache}
            ids.copy_(self.model(**given, logits_to_keep=1).logits[:, -1:].argmax(-1))

        for _ in range(WARM):
            step()
        run = self.graph_of(step) if is_fixed else step
        times, calls = [], 4
        for _ in range(max(self.options.tokens // calls, 1)):
            self.wait()
            began = time.perf_counter()
            for _ in range(calls):
                run()
                if not is_fixed:
                    position.add_(1)
            self.wait()
            times.append((time.perf_counter() - began) * 1e3 / calls)
        return times[1:] or times, self.profile(run)

    def graph_of(self, step):
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            step()
        return graph.replay

    def profile(self, run):
        return spent_by_kind(run) if self.is_gpu else {}

    def wait(self):
        if self.is_gpu:
            torch.cuda.synchronize()


def measure(bench, method, length):
    """Rows of one method at one length."""
    row = {"method": method, "length": length, "batch": bench.options.batch}
    if not bench.is_gpu and "captured" in method:
        yield {**row, "trouble": "a CUDA graph needs a GPU"}
        return
    began = time.perf_counter()
    cache = bench.start(method, length)
    bench.wait()
    row["fill_seconds"] = round(time.perf_counter() - began, 2)
    loops = ["forward"] if method == "full-captured" else ["generate", "forward"]
    for loop in loops:
        more = {}
        if loop == "generate":
            times = bench.generate(cache, length)
        else:
            seen = cache.get_seq_length()
            times, more["kernel_ms"] = bench.forward(cache, seen, method == "full-captured")
        device, host = bench.memory(cache)
        median = statistics.median(times)
        yield {
            **row, "loop": loop, "median_ms": round(median, 3), "min_ms": round(min(times), 3),
            "max_ms": round(max(times), 3), "count": len(times),
            "tokens_per_second": round(bench.options.batch * 1e3 / median, 1),
            "device_bytes": device, "host_bytes": host, **more,
        }  # fmt: skip


def rows(bench, say):
    ends = time.monotonic() + bench.options.seconds
    for length in bench.options.lengths:
        for method in bench.options.methods:
            if time.monotonic() > ends:
                yield {"method": method, "length": length, "trouble": "--seconds have passed"}
                continue
            say(f"{method} at {length}")
            try:
                yield from measure(bench, method, length)
            except Exception as error:  # the others still run
                traceback.print_exc()
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                yield {"method": method, "length": length, "trouble": text}
            gc.collect()
            if bench.is_gpu:
                torch.cuda.empty_cache()


@torch.no_grad()
def main(argv=None):
    parser = argparse.ArgumentParser(prog="bench.hf_gpu", description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--model", help="a folder; else --geometry")
    add("--geometry", default="qwen2.5-1.5b", choices=sorted(GEOMETRIES))
    add("--device", default="cuda")
    add("--dtype", default="bfloat16")
    add("--lengths", default="32768", help="tokens in the cache, comma-separated")
    add("--batch", type=int, default=1)
    add("--tokens", type=int, default=48, help="of each loop")
    add("--methods", default=",".join(METHODS))
    add("--set", action="append", default=[], help="OPTION=VALUE of pariskv.hf.enable")
    add("--seconds", type=float, default=1e9, help="after that, rows are left out")
    add("--json", action="store_true")
    options = parser.parse_args(argv)
    options.methods = options.methods.split(",")
    if unknown := set(options.methods) - set(METHODS):
        parser.error(f"--methods: {', '.join(unknown)}; choose from {', '.join(METHODS)}")
    if options.tokens <= WARM + 2:
        parser.error(f"--tokens: accepted are {WARM + 3} and more")
    options.lengths = [int(length) for length in options.lengths.split(",")]
    options.dtype = getattr(torch, options.dtype)
    transformers.AttentionInterface.register("unmasked", unmasked)
    bench = Bench(load(options), options)
    bar = tqdm(disable=not sys.stderr.isatty(), bar_format="{desc} [{elapsed}]")
    found = []
    for row in rows(bench, bar.set_description):
        found.append(row)
        if not options.json:
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    bar.close()
    if options.json:
        device = torch.cuda.get_device_name() if bench.is_gpu else "cpu"
        versions = {"torch": torch.__version__, "transformers": transformers.__version__,
                    "pariskv": pariskv.version()}  # fmt: skip
        print(json.dumps({
            "command": "python -m bench.hf_gpu " + " ".join(sys.argv[1:] if argv is None else argv),
            "device": device, "versions": versions, "date": time.strftime("%Y-%m-%d"),
            "model": options.model or f"{options.geometry}, random weights, {options.dtype}",
            "results": found,
        }, indent=1))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
