"""Text from a model with pariskv under it, and with --compare the same by full attention beside it.

    python examples/generate.py --model FOLDER "Once upon a time"
    python examples/generate.py --model FOLDER --prompt-file long.txt --tokens 200 --compare

FOLDER: a model of a supported architecture (pariskv.hf.SUPPORTED), as transformers saves it, or a
name on the Hugging Face hub. Needs pip install 'pariskv[hf]' tqdm."""

import argparse
import sys
import time

import pariskv.hf
import torch
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.generation.streamers import BaseStreamer


class Progress(BaseStreamer):
    """A bar of the tokens that have come, and when the first one did."""

    def __init__(self, name, tokens):
        self.bar = tqdm(total=tokens, desc=name, unit="token", disable=not sys.stderr.isatty())
        self.first = None
        self.count = -1  # the prompt comes first

    def put(self, value):
        self.count += 1
        if self.count == 1:
            self.first = time.perf_counter()
        if self.count:
            self.bar.update()

    def end(self):
        self.last = time.perf_counter()
        self.bar.close()


def run(name, model, inputs, tokens, cache):
    """(new ids, milliseconds per token behind the first, seconds until it)."""
    progress = Progress(name, tokens)
    began = time.perf_counter()
    options = {"max_new_tokens": tokens, "do_sample": False, "streamer": progress}
    ids = model.generate(**inputs, past_key_values=cache, **options)
    seconds = (progress.last - progress.first) / max(progress.count - 1, 1)
    return ids[0, inputs["input_ids"].shape[1] :], seconds * 1e3, progress.first - began


def report(name, text, milliseconds, wait, size):
    print(f"== {name}\n{text}")
    rate = f"{1e3 / milliseconds:.1f} tokens/s" if milliseconds else "one token"
    print(f"-- first token after {wait:.1f} s, then {rate}; cache {size / 2**20:.1f} MiB")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="generate.py", description=__doc__.split("\n\n")[0])
    parser.add_argument("prompt", nargs="?", help="or --prompt-file")
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt-file", type=argparse.FileType())
    parser.add_argument("--tokens", type=int, default=100, help="at most this many new ones")
    parser.add_argument("--profile", default="default", choices=["default", "paper"])
    parser.add_argument("--candidates", default="auto", help="share of the keys, 0 to 1, or auto")
    parser.add_argument("--k", type=int, default=100, help="rows that are attended in full")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ..")
    parser.add_argument("--captured", action="store_true", help="on a GPU: tokens by a CUDA graph")
    parser.add_argument("--compare", action="store_true", help="full attention too")
    options = parser.parse_args(argv)
    if (options.prompt is None) == (options.prompt_file is None):
        parser.error("give a prompt or --prompt-file")
    prompt = options.prompt if options.prompt is not None else options.prompt_file.read()

    tokenizer = AutoTokenizer.from_pretrained(options.model)
    model = AutoModelForCausalLM.from_pretrained(
        options.model, dtype=getattr(torch, options.dtype)
    ).to(options.device)
    inputs = tokenizer(prompt, return_tensors="pt").to(options.device)
    print(f"{inputs['input_ids'].shape[1]} tokens of prompt", file=sys.stderr)

    settings = dict(profile=options.profile, candidates=options.candidates, k=options.k)
    if options.captured:
        settings["captured"] = inputs["input_ids"].shape[1] + options.tokens
    try:
        pariskv.hf.enable(model, **settings)
    except (pariskv.Error, pariskv.hf.UnsupportedModelError) as error:
        parser.error(str(error))
    cache = pariskv.hf.Cache(model, **settings)
    ids, *times = run("pariskv", model, inputs, options.tokens, cache)
    report("pariskv", tokenizer.decode(ids, skip_special_tokens=True), *times, cache.usage().total)
    if options.compare:
        pariskv.hf.disable(model)
        full = DynamicCache(config=model.config)
        other, *times = run("full attention", model, inputs, options.tokens, full)
        size = sum(layer.keys.nbytes + layer.values.nbytes for layer in full.layers)
        report("full attention", tokenizer.decode(other, skip_special_tokens=True), *times, size)
        equal = sum(a == b for a, b in zip(ids.tolist(), other.tolist()))
        print(f"== {equal} of {len(other)} tokens are equal, place by place")
    return 0


if __name__ == "__main__":
    sys.exit(main())
