#!/usr/bin/env python3
"""Captures traces (keys, values and queries after RoPE) from a causal language model.

    python tools/capture_traces.py --model DIR --prompt-file prompt.txt --decode-tokens 300 \
        --layers 0,13,27 --kv-heads 0 --query-stride 2 --out traces
    python tools/capture_traces.py --model DIR --device cuda --chat --question "What is it about?" \
        --prompt-file law.txt --prompt-tokens 16000 --prompt-file code.txt --prompt-tokens 32000 \
        --keep 4:1,9:0,18:1 --out traces

The model is a directory or hub id that Hugging Face transformers loads, or a GGUF file (its weights
are dequantised). The prompt is one forward pass; then tokens are sampled one at a time, each seeing
all before it through the cache. An attention function registered with transformers sees q, k and v
after RoPE, hands them on to SDPA, and keeps them for the layers asked for. One file per layer:
OUT/NAME_lLL.safetensors, of several prompts OUT/NAME_PROMPT_lLL.safetensors, in the schema of
data/traces/README.md. All layers and heads of a prompt come from one run; --keep names KV heads by
layer. With --turn the user speaks again in the middle of the decoding, so that the second half of
the queries is about something else. The model is loaded once; `run` also takes one that is loaded
already.

Every trace is held against the model before it is written: softmax(scale q k) v over the float16
tensors must reproduce what the attention function returned, else the file would describe another
attention (a window, a soft cap, sinks) and is refused.

Not here: cutting and measuring a trace (tools/cut_trace.py). Needs numpy, safetensors, torch and
transformers 4.57 to 5.x; for GGUF also gguf and accelerate. Exit codes: 0 done, 2 usage, 3 bad
input, 4 a package is missing, 5 system failure.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cut_trace import Trace, TraceError, parse_heads, write_trace  # noqa: E402

ATTENTION_NAME = "pariskv_capture"
DTYPES = ("float32", "bfloat16", "float16")
FLOAT16_MAX = 65504.0
# Arguments of an attention function that change the result beyond softmax(scale q k) v.
FOREIGN_ARGUMENTS = ("softcap", "s_aux", "position_bias")


@dataclass
class LayerRecord:
    """What one layer handed to attention. Sizes: `g` KV heads kept, `hq` query heads of them."""

    scale: float = 0.0
    kv_heads: list[int] = field(default_factory=list)
    q: list[Any] = field(default_factory=list)  # per query: tensor [hq, d]
    out: list[Any] = field(default_factory=list)  # per query: what attention returned, [hq, d]
    k: Any = None  # tensor [g, n, d], of the last step: the whole cache
    v: Any = None  # tensor [g, n, d]


class Recorder:
    """An attention function for transformers: SDPA, and a copy of what the chosen layers see."""

    def __init__(self, kept: dict[int, list[int] | None], sdpa: Any) -> None:
        """`kept`: KV heads by layer, None for all of them."""
        self.records = {layer: LayerRecord() for layer in kept}
        self._kept = kept
        self._sdpa = sdpa
        self.tokens = 0  # tokens in the cache, the present step's included
        self.keeps_query = False
        self.keeps_cache = False

    def __call__(self, module, query, key, value, attention_mask, **arguments):
        """query [1, HQ, t, d], key and value [1, H, n, d] -> (output [1, t, HQ, d], weights)."""
        foreign = [name for name in FOREIGN_ARGUMENTS if arguments.get(name) is not None]
        if foreign:
            raise TraceError(f"the model's attention is no plain softmax: it has {foreign}")
        output, weights = self._sdpa(module, query, key, value, attention_mask, **arguments)
        layer = getattr(module, "layer_idx", None)
        if layer in self.records and (self.keeps_query or self.keeps_cache):
            self._keep(layer, query, key, value, output, arguments)
        return output, weights

    def _keep(self, layer, query, key, value, output, arguments) -> None:
        record = self.records[layer]
        window = arguments.get("sliding_window")
        if key.shape[2] != self.tokens or (window is not None and window < self.tokens):
            seen = f"layer {layer} sees {min(key.shape[2], window or key.shape[2])} keys"
            raise TraceError(f"{seen} of {self.tokens}: a sliding window; choose other --layers")
        present = key.shape[1]
        heads = self._kept[layer]
        kept = list(range(present)) if heads is None else heads
        if max(kept) >= present:
            raise TraceError(f"--kv-heads {kept}: layer {layer} has KV heads 0..{present - 1}")
        group = query.shape[1] // present
        columns = [head * group + i for head in kept for i in range(group)]
        scaling = arguments.get("scaling")
        record.scale = query.shape[3] ** -0.5 if scaling is None else float(scaling)
        record.kv_heads = kept
        if self.keeps_query:
            record.q.append(query[0, columns, -1].detach().cpu())
            record.out.append(output[0, -1, columns].detach().cpu())
        if self.keeps_cache:
            record.k = key[0, kept].detach().cpu()
            record.v = value[0, kept].detach().cpu()


def install(recorder: Recorder) -> None:
    """Makes `recorder` the attention function ATTENTION_NAME, with the masks of SDPA."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

    AttentionInterface.register(ATTENTION_NAME, recorder)
    AttentionMaskInterface.register(ATTENTION_NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def load(model: str, gguf_file: str | None, dtype: str, device: str):
    """(tokenizer, model) of a directory, a hub id, or with `gguf_file` of that file in either."""
    import torch
    import transformers

    extra: dict[str, Any] = {}
    if gguf_file is not None:
        extra["gguf_file"] = gguf_file
    tokenizer = transformers.AutoTokenizer.from_pretrained(model, **extra)
    if gguf_file is not None and hasattr(transformers, "GgufConfig"):  # before 5.x: the only way
        extra["quantization_config"] = transformers.GgufConfig(dequantize=True)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        model, dtype=getattr(torch, dtype), attn_implementation=ATTENTION_NAME, **extra
    )
    return tokenizer, loaded.to(device).eval()


def sample(logits, temperature: float, banned: list[int], generator) -> int:
    """One token of logits [vocabulary]; temperature 0 takes the largest; `banned` never come."""
    import torch

    logits = logits.float().cpu()
    logits[banned] = -torch.inf
    if temperature == 0:
        return int(logits.argmax())
    weights = torch.softmax(logits / temperature, dim=-1)
    return int(torch.multinomial(weights, 1, generator=generator))


def banned_tokens(model, vocabulary: int) -> list[int]:
    """The end-of-sequence tokens: decoding goes on to the length asked for."""
    found: set[int] = set()
    for config in (model.config, getattr(model, "generation_config", None)):
        ids = getattr(config, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return sorted(token for token in found if 0 <= token < vocabulary)


def capture(
    model,
    recorder: Recorder,
    prompt: list[int],
    decode_tokens: int,
    query_stride: int,
    temperature: float,
    seed: int,
    turn: list[int],
) -> list[int]:
    """Runs prompt and decoding; fills `recorder.records` and returns the positions of its queries.

    Decoded token i stands at position len(prompt) + i, from the middle on behind `turn`, tokens
    that are fed in one pass. Every query_stride-th decoded token is kept. Its query sees keys
    0..position, its own included.
    """
    import torch
    from transformers import DynamicCache

    generator = torch.Generator().manual_seed(seed)
    # a later 5.x renamed the argument past_key_values to cache
    named = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    extra = {named: DynamicCache(config=model.config), "use_cache": True, "logits_to_keep": 1}
    positions, tokens = [], len(prompt)
    started = time.monotonic()
    with torch.inference_mode():
        step = torch.tensor([prompt], device=model.device)
        recorder.keeps_query = recorder.keeps_cache = False
        logits = model(step, **extra).logits[0, -1]
        seconds = time.monotonic() - started
        print(f"prompt: {len(prompt)} tokens, {seconds:.1f} s", file=sys.stderr)
        banned = banned_tokens(model, len(logits))
        for i in range(decode_tokens):
            if turn and i == decode_tokens // 2:
                recorder.keeps_query = False
                step = torch.tensor([turn], device=model.device)
                logits = model(step, **extra).logits[0, -1]
                tokens += len(turn)
            token = sample(logits, temperature, banned, generator)
            tokens += 1
            recorder.tokens = tokens
            recorder.keeps_query = i % query_stride == 0
            if recorder.keeps_query:
                positions.append(tokens - 1)
            recorder.keeps_cache = i == decode_tokens - 1
            step = torch.tensor([[token]], device=model.device)
            logits = model(step, **extra).logits[0, -1]
        recorder.keeps_query = recorder.keeps_cache = False
    seconds = time.monotonic() - started
    print(f"prompt and {decode_tokens} decoded tokens: {seconds:.1f} s", file=sys.stderr)
    return positions


def to_float16(tensor, name: str) -> np.ndarray:
    """A float16 copy. bfloat16 values between 2^-14 and 65504 keep all their bits."""
    array = tensor.float().numpy()
    largest = float(np.abs(array).max())
    if not largest <= FLOAT16_MAX:
        raise TraceError(f"{name}: largest magnitude {largest} outside float16, 0..{FLOAT16_MAX}")
    return array.astype(np.float16)


def to_trace(
    record: LayerRecord, positions: list[int], layer: int, model: str, n_prompt: int
) -> Trace:
    """The trace of one layer; `model` is the metadata text, `positions` those of the queries."""
    import torch

    if record.k is None:
        raise TraceError(f"layer {layer} does not take its attention function from transformers")
    return Trace(
        k=to_float16(record.k, f"layer {layer}, k"),
        v=to_float16(record.v, f"layer {layer}, v"),
        q=to_float16(torch.stack(record.q), f"layer {layer}, q"),
        q_pos=np.asarray(positions, dtype=np.int64),
        metadata={
            "scale": f"{record.scale:.17f}",
            "kv_heads": json.dumps(record.kv_heads),
            "n_prompt": str(n_prompt),
            "layer": str(layer),
            "model": model,
            "rope": "applied",
        },
    )


def attention(trace: Trace) -> np.ndarray:
    """softmax(scale q k) v of each query over keys 0..q_pos -> [nq, hq, d] float32."""
    group = trace.q.shape[1] // trace.k.shape[0]
    scale = float(trace.metadata["scale"])
    out = np.empty(trace.q.shape, dtype=np.float32)
    for h in range(trace.k.shape[0]):
        keys, values = trace.k[h].astype(np.float32), trace.v[h].astype(np.float32)
        heads = slice(h * group, (h + 1) * group)
        for i, position in enumerate(trace.q_pos):
            seen = int(position) + 1
            score = scale * (trace.q[i, heads].astype(np.float32) @ keys[:seen].T)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            out[i, heads] = weight @ values[:seen] / weight.sum(axis=1, keepdims=True)
    return out


def capture_error(trace: Trace, record: LayerRecord) -> float:
    """Relative L2 distance of the trace's attention from what the model's attention returned."""
    import torch

    expected = torch.stack(record.out).float().numpy()
    norm = max(float(np.linalg.norm(expected)), 1e-30)
    return float(np.linalg.norm(attention(trace) - expected)) / norm


def slug(name: str) -> str:
    """A file name stem: `SmolLM2 135M` -> `smollm2-135m`."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "model"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Captures keys, values and queries after RoPE from a causal language model."
    )
    add = parser.add_argument
    add("--model", required=True, help="directory, hub id, or path of a .gguf file")
    add("--gguf-file", help="name of the GGUF file inside --model")
    add("--prompt-file", type=Path, required=True, action="append", help="UTF-8 text; again: more")
    add(
        "--prompt-tokens",
        type=int,
        action="append",
        help="of each --prompt-file no more than what makes a prompt of so many tokens (all)",
    )
    add("--question", default="", help="text behind that of the file")
    add("--turn", default="", help="what the user says after half of the decoded tokens")
    add("--chat", action="store_true", help="wrap the prompt in the model's chat template")
    add("--decode-tokens", type=int, default=300, help="tokens to decode after the prompt (300)")
    kept = parser.add_mutually_exclusive_group(required=True)
    kept.add_argument("--layers", type=parse_heads, help="layers to keep: 0,13,27")
    kept.add_argument("--keep", type=parse_kept, help="KV heads by layer: 4:1,9:0,9:1")
    add("--kv-heads", type=parse_heads, help="KV heads to keep of --layers: 0,2 (all)")
    add("--query-stride", type=int, default=2, help="keep every N-th decoded query (2)")
    add("--temperature", type=float, default=0.7, help="of the sampling; 0: greedy (0.7)")
    add("--seed", type=int, default=0, help="of the sampling (0)")
    add("--dtype", choices=DTYPES, default="bfloat16", help="the model runs in (bfloat16)")
    add("--device", default="cpu", help="torch device the model runs on (cpu)")
    add("--name", help="model name in file names and metadata (the name of --model)")
    add("--licence", help="the model's licence, added to the metadata")
    add("--max-error", type=float, default=0.05, help="refuse a trace further off (0.05)")
    add("--out", type=Path, required=True, help="folder for the traces; made if missing")
    add("--force", action="store_true", help="overwrite traces in --out")
    options = parser.parse_args(arguments)
    for name, value, low in (
        ("--decode-tokens", options.decode_tokens, 1),
        ("--query-stride", options.query_stride, 1),
        ("--seed", options.seed, 0),
        ("--temperature", options.temperature, 0),
    ):
        if not value >= low:
            parser.error(f"{name} {value} must be at least {low}")
    if options.gguf_file is None and options.model.endswith(".gguf"):
        path = Path(options.model)
        options.model, options.gguf_file = str(path.parent), path.name
    if options.keep is None:
        heads = sorted(set(options.kv_heads)) if options.kv_heads else None
        options.keep = {layer: heads for layer in sorted(set(options.layers))}
    elif options.kv_heads:
        parser.error("--kv-heads goes with --layers; --keep names heads itself")
    prompts = len(options.prompt_file)
    if options.prompt_tokens is None:
        options.prompt_tokens = [None] * prompts
    if len(options.prompt_tokens) != prompts:
        given = len(options.prompt_tokens)
        parser.error(f"{prompts} --prompt-file and {given} --prompt-tokens: one for each, or none")
    if len({path.stem for path in options.prompt_file}) != prompts:
        parser.error("--prompt-file: names of several prompts must differ")
    if options.name is None:
        options.name = Path(options.gguf_file or options.model).name.removesuffix(".gguf")
    return options


def parse_kept(text: str) -> dict[int, list[int]]:
    """`4:1,9:0,9:1` -> {4: [1], 9: [0, 1]}."""
    kept: dict[int, set[int]] = {}
    for part in text.split(","):
        layer, colon, head = part.partition(":")
        if not (colon and layer.isdecimal() and head.isdecimal()):
            raise argparse.ArgumentTypeError(f"{part!r}, accepted: LAYER:HEAD, as in 4:1,9:0")
        kept.setdefault(int(layer), set()).add(int(head))
    return {layer: sorted(kept[layer]) for layer in sorted(kept)}


def prompt_tokens(tokenizer, text: str, is_chat: bool) -> list[int]:
    """Token ids of the prompt, with the template's or the tokenizer's own special tokens."""
    if is_chat:
        if not tokenizer.chat_template:
            raise TraceError("--chat: the model's tokenizer has no chat template")
        message = [{"role": "user", "content": text}]
        text = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    ids = tokenizer(text, add_special_tokens=not is_chat)["input_ids"]
    if not ids:
        raise TraceError("--prompt-file holds no token")
    return ids


def fitted_prompt(tokenizer, text: str, question: str, is_chat: bool, most: int | None):
    """Token ids of text and question; the text loses its end until there are at most `most`."""
    ids = prompt_tokens(tokenizer, text + question, is_chat)
    if most is None or len(ids) <= most:
        return ids
    told = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ends = [end for _, end in told["offset_mapping"]]
    room = min(most, len(ends))
    while len(ids) > most and room > 0:
        ids = prompt_tokens(tokenizer, text[: ends[room - 1]] + question, is_chat)
        room -= max(1, len(ids) - most)
    if len(ids) > most:
        raise TraceError(f"--prompt-tokens {most}: the rest of the prompt alone has {len(ids)}")
    return ids


def turn_tokens(tokenizer, text: str, is_chat: bool) -> list[int]:
    """Token ids of a further turn of the user, from behind an answer to where the next begins."""
    if is_chat and text:
        answer = "ANSWER"
        talk = [("user", "QUESTION"), ("assistant", answer), ("user", text)]
        whole = tokenizer.apply_chat_template(
            [{"role": role, "content": content} for role, content in talk],
            tokenize=False,
            add_generation_prompt=True,
        )
        text = whole.partition(answer)[2]
    return tokenizer(text, add_special_tokens=False)["input_ids"] if text else []


def prompt_of(options: argparse.Namespace, path: Path, most: int | None, tokenizer, config):
    """Token ids of a prompt file."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TraceError(f"--prompt-file {path}: {error}") from error
    prompt = fitted_prompt(tokenizer, text, options.question, options.chat, most)
    total, limit = len(prompt) + options.decode_tokens, config.max_position_embeddings
    total += len(turn_tokens(tokenizer, options.turn, options.chat))
    if total > limit:
        lengths = f"{len(prompt)} prompt tokens + --decode-tokens {options.decode_tokens}"
        raise TraceError(f"{lengths} is {total}, the model takes {limit}")
    return prompt


def captured(options: argparse.Namespace, model, prompt: list[int], turn: list[int]):
    """The trace by layer, each held against what the model's attention returned."""
    from transformers import AttentionInterface

    recorder = Recorder(options.keep, AttentionInterface()["sdpa"])
    install(recorder)
    positions = capture(
        model,
        recorder,
        prompt,
        options.decode_tokens,
        options.query_stride,
        options.temperature,
        options.seed,
        turn,
    )
    described = options.name + (f" ({options.licence})" if options.licence else "")
    described += f", weights of {options.gguf_file}" if options.gguf_file else ""
    described += f", run in {str(model.dtype).removeprefix('torch.')}"
    traces = {}
    for layer, record in recorder.records.items():
        trace = to_trace(record, positions, layer, described, len(prompt))
        error = capture_error(trace, record)
        print(f"layer {layer}: attention reproduced, error {error:.2e}", file=sys.stderr)
        if not error <= options.max_error:
            text = f"layer {layer}: the trace's attention is off by {error:.3g}"
            raise TraceError(f"{text}, allowed is --max-error {options.max_error}")
        traces[layer] = trace
    return traces


def targets_of(options: argparse.Namespace) -> dict[tuple[Path, int], Path]:
    """Where the trace of each prompt and layer goes."""
    found = {}
    for path in options.prompt_file:
        more = f"_{slug(path.stem)}" if len(options.prompt_file) > 1 else ""
        for layer in options.keep:
            name = f"{slug(options.name)}{more}_l{layer:02d}.safetensors"
            found[path, layer] = options.out / name
    return found


def run(options: argparse.Namespace, tokenizer=None, model=None) -> None:
    """Captures and writes one file per prompt and layer; of a prompt nothing is written unless
    every layer is good. A model that is given keeps its attention function afterwards."""
    from transformers import AttentionInterface

    targets = targets_of(options)
    standing = [str(path) for path in targets.values() if path.exists()]
    if standing and not options.force:
        raise TraceError(f"{', '.join(standing)} exists; --force overwrites")
    before = None
    install(Recorder({}, AttentionInterface()["sdpa"]))  # the name has to be known already
    if model is None:
        tokenizer, model = load(options.model, options.gguf_file, options.dtype, options.device)
    else:
        before = model.config._attn_implementation
        model.set_attn_implementation(ATTENTION_NAME)
    try:
        config = model.config.get_text_config()
        layers = list(options.keep)
        if layers[-1] >= config.num_hidden_layers:
            have = f"the model has layers 0..{config.num_hidden_layers - 1}"
            raise TraceError(f"--layers {layers}: {have}")
        prompts = [
            (path, prompt_of(options, path, most, tokenizer, config))
            for path, most in zip(options.prompt_file, options.prompt_tokens)
        ]
        for path, prompt in prompts:
            turn = turn_tokens(tokenizer, options.turn, options.chat)
            traces = captured(options, model, prompt, turn)
            options.out.mkdir(parents=True, exist_ok=True)
            for layer, trace in traces.items():
                write_trace(targets[path, layer], trace, force=options.force)
                print(targets[path, layer])
    finally:
        if before is not None:
            model.set_attn_implementation(before)


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        run(options)
    except ImportError as error:
        needed = "numpy safetensors torch transformers, for GGUF also gguf accelerate"
        print(f"capture_traces: {error}; needed: {needed}", file=sys.stderr)
        return 4
    except (TraceError, FileNotFoundError) as error:
        print(f"capture_traces: {error}", file=sys.stderr)
        return 3
    except OSError as error:  # also transformers' own: no such model, no network
        print(f"capture_traces: {error}", file=sys.stderr)
        return 5
    return 0


if __name__ == "__main__":
    sys.exit(main())
