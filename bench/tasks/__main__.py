"""Tasks of long contexts under a real model: scores of full attention, the paper's profile and the
default over the same prefill.

    python -m bench.tasks --model DIR --lengths 4096,8192 --prompts 200 --json out.json
    python -m bench.tasks --suite perplexity --model DIR --json out.json
    python -m bench.tasks --suite drift --model DIR --json out.json
    python -m bench.tasks --suite longbench-v2 --data data.json --model DIR --json out.json

DIR is a local directory of a model that pariskv.hf supports, or a .gguf file. docs/tasks.md.
Exit codes: 0 done (also when --minutes ended it), 2 usage, 3 bad input."""

import copy
import functools
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

from . import caches, drift, files, local, perplexity, summary, synthetic
from .job import Job
from .options import parse

RUN = {"synthetic": synthetic.run, "perplexity": perplexity.run, "drift": drift.run}
LINES = {"synthetic": summary.lines_of, "perplexity": perplexity.lines_of, "drift": drift.lines_of}


@functools.lru_cache(maxsize=1)
def loaded(path, dtype, device):
    tokenizer, model = hf_eval.load(path, dtype)
    return tokenizer, model.to(device)


def load(options):
    """(tokenizer, model), those of the run before where they are the same."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(options.dtype, torch.float32)
    if not options.yarn:
        return loaded(options.model, dtype, options.device)
    tokenizer, model = loaded(options.model, dtype, options.device)
    return tokenizer, stretched(model, options.yarn)


def stretched(model, factor):
    """A model of the same weights, whose positions YaRN stretches."""
    config = copy.deepcopy(model.config)
    length = config.max_position_embeddings
    old = getattr(config, "rope_parameters", None) or {"rope_theta": config.rope_theta}
    scaling = {**old, "rope_type": "yarn", "factor": factor,
               "original_max_position_embeddings": length}  # fmt: skip
    name = "rope_parameters" if hasattr(config, "rope_parameters") else "rope_scaling"
    setattr(config, name, scaling)
    config.max_position_embeddings = int(length * factor)
    with torch.device("meta"):
        fresh = type(model)(config)
    fresh.load_state_dict(model.state_dict(), assign=True)
    for path, module in list(fresh.named_modules()):
        if any(True for _ in module.named_buffers(recurse=False)):  # tables, which are not saved
            owner, _, name = path.rpartition(".")
            setattr(fresh.get_submodule(owner), name, type(module)(config).to(model.device))
    fresh.generation_config = model.generation_config
    return fresh.eval()


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
    began = time.monotonic()
    argv = sys.argv[1:] if argv is None else argv
    options = parse(argv, __doc__)
    if options.threads:
        torch.set_num_threads(options.threads)
    transformers.utils.logging.set_verbosity_error()
    items = []
    try:
        if options.suite in files.SUITES:
            items = files.load(options.suite, options.data, options.seed)[: options.limit]
    except files.DataError as error:
        print(f"tasks: {error}", file=sys.stderr)
        return 3
    tokenizer, model = load(options)
    rows = options.rows if options.device != "cpu" else None
    with torch.inference_mode():
        world = caches.World(model, options.methods, rows)
        job = Job(world, tokenizer, options, head_of(options, argv), began, items)
        try:
            found = RUN.get(options.suite, local.run)(job)
        except ValueError as error:
            print(f"tasks: {error}", file=sys.stderr)
            return 3
        document = job.save(found)
    print(*LINES.get(options.suite, local.lines_of)(document), sep="\n")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what was saved stays
    sys.exit(main())
