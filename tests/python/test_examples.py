"""The Python examples, run as a user would, and held against what they claim."""

import importlib.util
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


SHAPE = dict(sink=32, local=32, interval=32, dense_below=64, page_tokens=64)


@pytest.fixture(scope="module")
def paged(pariskv):
    return load("paged_engine")


def prompts():
    import numpy as np

    rng = np.random.default_rng(3)
    long = rng.integers(0, 200, 300).tolist()
    return [long, long[:150] + [1, 2, 3], rng.integers(0, 200, 40).tolist()]


def test_requests_that_run_together_get_what_each_gets_alone(paged):
    options = dict(k=4096, candidates=1.0, **SHAPE)
    together = paged.serve(paged.Engine(paged.ToyModel(), **options), prompts(), 12)
    for prompt, found in zip(prompts(), together):
        alone = paged.serve(paged.Engine(paged.ToyModel(), **options), [prompt], 12)
        assert alone == [found]
    assert len({token for found in together for token in found}) > 6
    few = dict(k=1, candidates=0.01, tail="drop", **SHAPE)
    assert paged.serve(paged.Engine(paged.ToyModel(), **few), prompts(), 12) != together


def test_pages_are_shared_and_given_back(paged):
    engine = paged.Engine(paged.ToyModel(), pages=32, k=8, **SHAPE)
    first, second = (paged.Request(prompt, 5) for prompt in prompts()[:2])
    engine.join(first)
    engine.step()
    engine.join(second, first)
    assert (engine.pool.users == 2).sum() == 150 // paged.PAGE
    while engine.running:
        engine.step()
    assert not engine.pool.users.any() and engine.cache.stats().sequences == 0
    engine.join(paged.Request(list(range(200)) * 3, 5))
    with pytest.raises(MemoryError, match="all 32 pages"):
        engine.step()


def test_the_paged_engine_as_a_program(paged, capsys):
    assert paged.main(["--prompt", "300", "--tokens", "4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 and lines[-1] == "pages in use at the end: 0"


def test_generate_compares(pariskv, tmp_path, capsys):
    torch = pytest.importorskip("torch", reason="torch is not installed: tools/test_python")
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed: tools/test_python"
    )
    pytest.importorskip("tqdm")
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(50)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32,
                                      num_hidden_layers=1, num_attention_heads=2, head_dim=16,
                                      num_key_value_heads=1, eos_token_id=None)  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    generate = load("generate")
    command = ["--model", str(tmp_path), "--tokens", "6", "--compare", "w1 w2 w3"]
    assert generate.main(command) == 0
    out = capsys.readouterr().out
    assert "== pariskv\n" in out and "== full attention\n" in out
    assert out.endswith("== 6 of 6 tokens are equal, place by place\n")
    with pytest.raises(SystemExit, match="2"):
        generate.main([*command, "--k", "-3"])
