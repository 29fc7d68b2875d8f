"""The command line of bench.tasks."""

import argparse
from pathlib import Path

from . import caches, files, prompts, texts

MADE = ("synthetic", "perplexity", "drift")


def numbers(text):
    """ "4096,8k,128K" as numbers."""
    found = []
    for part in text.split(","):
        factor = 1024 if part[-1:] in "kK" else 1
        if not part.rstrip("kK").isdigit():
            raise argparse.ArgumentTypeError(f"{part!r} is no number of tokens")
        found.append(int(part.rstrip("kK")) * factor)
    return found


def parser_of(about):
    parser = argparse.ArgumentParser(
        prog="bench.tasks", description=about, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--suite", default="synthetic", choices=(*MADE, *files.SUITES), help="what is asked")
    add("--model", required=True, help="a local directory, or a .gguf file")
    add("--methods", default="full,paper,default", help="also with options: default+k=400")
    add(
        "--minutes",
        type=float,
        default=1e6,
        help="from the start; begin no batch that would not end by then",
    )
    add("--json", help="results; written after every batch")
    add("--device", default="cpu", help="cpu or cuda")
    add("--dtype", default="float32", choices=("float32", "bf16", "fp16"))
    add("--rows", default="device", choices=("device", "host"), help="where K and V lie")
    add("--yarn", type=float, default=0, help="factor by which YaRN stretches the positions")
    add("--threads", type=int, default=0, help="of torch; 0: its choice")
    add("--batch", type=int, default=32, help="prompts at once, at most")
    add("--batch-tokens", type=int, default=524288, help="prompts at once times their tokens")
    add("--seed", type=int, default=0)
    add(
        "--chat",
        action=argparse.BooleanOptionalAction,
        help="prompts within the model's chat template; default: for files, but not RULER's",
    )
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
    local = parser.add_argument_group("from files")
    local.add_argument("--data", help="the benchmark's file, or RULER's folder")
    local.add_argument("--limit", type=int, help="the first questions only")
    local.add_argument(
        "--max-tokens",
        type=int,
        help="of prompt and answer; default: positions of "
        "the model. Longer texts lose their middle",
    )
    local.add_argument("--new-tokens", type=int, help="of an answer; default: by suite")
    local.add_argument("--samples", type=int, help="answers to each question; default 1, aime25 8")
    local.add_argument("--temperature", type=float, help="default: 0, of math500, aime25, gpqa .6")
    local.add_argument("--top-p", type=float, default=0.95)
    return parser


def parse(argv, about=None):
    parser = parser_of(about)
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
    if (options.suite in files.SUITES) != bool(options.data):
        parser.error(f"--data goes with --suite {', '.join(files.SUITES)}, and they with it")
    if not Path(options.model).exists():
        parser.error(f"--model: {options.model} does not exist")
    return options
