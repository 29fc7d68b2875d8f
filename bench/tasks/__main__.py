"""Tasks of long contexts under a real model: scores of full attention, the paper's profile and the
default over the same prefill.

    python -m bench.tasks --model DIR --lengths 4096,8192 --prompts 200 --json out.json
    python -m bench.tasks --suite perplexity --model DIR --json out.json
    python -m bench.tasks --suite drift --model DIR --json out.json
    python -m bench.tasks --suite longbench-v2 --data data.json --model DIR --json out.json

DIR is a local directory of a model that pariskv.hf supports, or a .gguf file. docs/tasks.md.
Exit codes: 0 done (also when --minutes ended it), 2 usage, 3 bad input."""

import argparse
import json
import os
import platform
import shlex
import signal
import sys
import time
from pathlib import Path

import pariskv.hf
import torch
import transformers

from bench import hf_eval

from . import caches, drift, perplexity, prompts, summary, synthetic, texts

MADE = {"synthetic": synthetic.run, "perplexity": perplexity.run, "drift": drift.run}
LINES = {"perplexity": perplexity.lines_of, "drift": drift.lines_of}


class Clock:
    def __init__(self, minutes):
        self.ends = time.monotonic() + 60 * minutes

    def has(self, seconds):
        """Whether so much time is left."""
        return time.monotonic() + seconds < self.ends


class Job:
    """A model, the methods' caches, and where results go."""

    def __init__(self, world, tokenizer, options, head):
        self.world, self.tokenizer, self.options, self.head = world, tokenizer, options, head
        self.clock = Clock(options.minutes)
        self.extra = {}
        self.began = time.monotonic()

    def say(self, text):
        print(f"[{time.monotonic() - self.began:.0f} s] {text}", file=sys.stderr, flush=True)

    def save(self, found):
        document = {**self.head, **self.extra, **found}
        document["wall_seconds"] = round(time.monotonic() - self.began, 1)
        if self.options.json:
            path = Path(self.options.json)
            part = path.with_suffix(".part")
            part.write_text(dumps(document))
            os.replace(part, path)
        return document


def dumps(document):
    """JSON with a line for each row of a list."""
    lines = []
    for name, value in document.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join("  " + json.dumps(row) for row in value) + "]"
        lines.append(f"{json.dumps(name)}: {text}")
    return "{" + ",\n".join(lines) + "}\n"


def numbers(text):
    """ "4096,8k,128K" as numbers."""
    found = []
    for part in text.split(","):
        factor = 1024 if part[-1:] in "kK" else 1
        if not part.rstrip("kK").isdigit():
            raise argparse.ArgumentTypeError(f"{part!r} is no number of tokens")
        found.append(int(part.rstrip("kK")) * factor)
    return found


def parser_of():
    parser = argparse.ArgumentParser(
        prog="bench.tasks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--suite", default="synthetic", choices=sorted(MADE), help="what is asked")
    add("--model", required=True, help="a local directory, or a .gguf file")
    add("--methods", default="full,paper,default", help="also with options: default+k=400")
    add("--minutes", type=float, default=1e6, help="begin nothing that would not end by then")
    add("--json", help="results; written after every batch")
    add("--device", default="cpu", help="cpu or cuda")
    add("--dtype", default="float32", choices=("float32", "bf16", "fp16"))
    add("--rows", default="device", choices=("device", "host"), help="where K and V lie")
    add("--yarn", type=float, default=0, help="factor by which YaRN stretches the positions")
    add("--threads", type=int, default=0, help="of torch; 0: its choice")
    add("--batch", type=int, default=32, help="prompts at once, at most")
    add("--batch-tokens", type=int, default=524288, help="prompts at once times their tokens")
    add("--seed", type=int, default=0)
    add("--chat", action="store_true", help="prompts within the model's chat template")
    add("--keep-text", action="store_true", help="answers and references into the JSON")
    add("--text", help=f"file, or {', '.join(texts.TEXTS)}; perplexity and drift: several")
    made = parser.add_argument_group("synthetic")
    made.add_argument("--lengths", type=numbers, default=[4096], help="tokens of a prompt: 4k,8k")
    made.add_argument("--prompts", type=int, default=200, help="per length, over all tasks")
    made.add_argument("--tasks", default=",".join(prompts.TASKS))
    made.add_argument(
        "--ask",
        default="prefill",
        choices=("prefill", "index"),
        help="whether the question is prefilled or goes through the index too",
    )
    forced = parser.add_argument_group("perplexity, drift")
    forced.add_argument("--prompt", type=int, default=4096, help="tokens of the prefill")
    forced.add_argument("--tokens", type=int, help="behind it; default 512, drift 12288")
    forced.add_argument("--pieces", type=int, default=4, help="windows of each text")
    forced.add_argument("--block", type=int, help="tokens of a forward; default 1, drift 16")
    forced.add_argument("--every", type=int, default=1024, help="tokens between looks; drift")
    forced.add_argument("--judged", type=int, default=2, help="pieces whose recall is taken; drift")
    forced.add_argument("--fit-queries", type=int, default=128, help="of refitted codecs; drift")
    return parser


def parse(argv):
    parser = parser_of()
    options = parser.parse_args(argv)
    is_drift = options.suite == "drift"
    options.tokens = options.tokens or (12288 if is_drift else 512)
    options.block = options.block or (16 if is_drift else 1)
    default = "manual" if options.suite == "synthetic" else "manual,project,sources"
    options.text = (options.text or default).split(",")
    options.methods, options.tasks = options.methods.split(","), options.tasks.split(",")
    try:
        for method in options.methods:
            caches.options_of(method)
    except ValueError as error:
        parser.error(str(error))
    unknown = set(options.tasks) - set(prompts.TASKS)
    if unknown:
        parser.error(f"--tasks: {', '.join(unknown)}; choose from {', '.join(prompts.TASKS)}")
    if options.every % options.block:
        parser.error(f"--every {options.every} must be a multiple of --block {options.block}")
    if options.model and not Path(options.model).exists():
        parser.error(f"--model: {options.model} does not exist")
    return options


def load(options):
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.dtype, torch.float32)
    tokenizer, model = hf_eval.load(options.model, dtype)
    if options.yarn:
        config, length = model.config, model.config.max_position_embeddings
        old = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
        stretched = {**old, "rope_type": "yarn", "factor": options.yarn,
                     "original_max_position_embeddings": length}  # fmt: skip
        name = "rope_parameters" if hasattr(config, "rope_parameters") else "rope_scaling"
        setattr(config, name, stretched)
        config.max_position_embeddings = int(length * options.yarn)
        fresh = type(model)(config).to(dtype)
        fresh.load_state_dict(model.state_dict())
        fresh.generation_config, model = model.generation_config, fresh
    return tokenizer, model.to(options.device)


def head_of(options, argv):
    gpu = options.device != "cpu"
    return {
        "command": shlex.join(["python", "-m", "bench.tasks", *argv]),
        "suite": options.suite,
        "model": Path(options.model).name,
        "device": torch.cuda.get_device_name() if gpu
        else f"{platform.machine()}, {torch.get_num_threads()} threads of torch",
        "dtype": options.dtype,
        "date": time.strftime("%Y-%m-%d"),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__,
                     "pariskv": pariskv.version(), "python": platform.python_version()},
        "methods": {method: caches.options_of(method) for method in options.methods},
    }  # fmt: skip


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    tokenizer, model = load(options)
    rows = options.rows if options.device != "cpu" else None
    with torch.inference_mode():
        world = caches.World(model, options.methods, rows)
        job = Job(world, tokenizer, options, head_of(options, argv))
        try:
            found = MADE[options.suite](job)
        except ValueError as error:
            print(f"tasks: {error}", file=sys.stderr)
            return 3
        document = job.save(found)
    print(*LINES.get(options.suite, summary.lines_of)(document), sep="\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was saved stays
    sys.exit(main())
