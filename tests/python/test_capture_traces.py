"""tools/capture_traces.py on tiny randomly initialised models: the trace is what the model attends.

The oracle is a second copy of the model with transformers' eager attention, teacher-forced over
prompt and decoded tokens in one pass: what enters o_proj is the attention output. It shares no code
with the tool, neither the cache, nor SDPA, nor the registered attention function.
"""

import json
import sys
from pathlib import Path

import pytest

REASON = "capture needs torch, transformers and safetensors: pip install them to run this"
torch = pytest.importorskip("torch", reason=REASON)
transformers = pytest.importorskip("transformers", reason=REASON)
pytest.importorskip("safetensors", reason=REASON)
np = pytest.importorskip("numpy", reason=REASON)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import capture_traces  # noqa: E402
import cut_trace  # noqa: E402

VOCABULARY = 96
PROMPT = [int(i) for i in np.random.default_rng(7).integers(3, VOCABULARY, 40)]
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.15,  # attention far from uniform, so that a wrong head or scale shows
}


def windowed(layer_types):
    """A Qwen2 whose sliding layers see the last 16 tokens only."""
    window = {"use_sliding_window": True, "sliding_window": 16, "layer_types": layer_types}
    return transformers.Qwen2Config(**{**SIZES, "num_hidden_layers": len(layer_types)}, **window)


CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES),
    "window": lambda: windowed(["sliding_attention", "full_attention", "full_attention"]),
}


def save_model(config, folder):
    """Writes a randomly initialised model, a tokenizer of one character per token, the prompt.

    Byte-level BPE without merges, since transformers 5 rebuilds Qwen2's tokenizer as one.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):  # zero at first; Qwen2 has them on q, k, v
            torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    characters = {chr(ord("!") + i - 3): i for i in range(3, VOCABULARY)}
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2, **characters}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    fast.save_pretrained(folder)
    text = "".join(chr(ord("!") + i - 3) for i in PROMPT)
    (folder / "prompt.txt").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module", params=sorted(CONFIGS))
def model_folder(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    save_model(CONFIGS[request.param](), folder)
    return folder


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    save_model(CONFIGS["llama"](), folder)
    return folder


def command(folder, out, *more):
    return [
        f"--model={folder}",
        f"--prompt-file={folder / 'prompt.txt'}",
        "--dtype=float32",
        "--name=Tiny Model",
        f"--out={out}",
        *more,
    ]


def reference(folder, decode_tokens):
    """Greedy decoding without a cache -> (tokens, [attention output [n, hq, d] per layer])."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    outputs = []
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, inputs: outputs.append(inputs[0][0].numpy())
        )
    tokens = list(PROMPT)
    with torch.inference_mode():
        for _ in range(decode_tokens):
            logits = model(torch.tensor([tokens])).logits[0, -1]
            logits[SIZES["eos_token_id"]] = -torch.inf
            tokens.append(int(logits.argmax()))
        outputs.clear()
        model(torch.tensor([tokens]))
    shape = (len(tokens), SIZES["num_attention_heads"], SIZES["head_dim"])
    return tokens, [output.reshape(shape) for output in outputs]


def test_trace_reproduces_the_attention_of_the_model(model_folder, tmp_path):
    """Two layers, both KV heads: softmax(scale q k) v over keys 0..q_pos is the model's output."""
    decode_tokens, stride = 21, 4
    arguments = ["--decode-tokens=21", "--query-stride=4", "--layers=1,2", "--temperature=0"]
    assert capture_traces.main(command(model_folder, tmp_path, *arguments)) == 0
    tokens, outputs = reference(model_folder, decode_tokens)
    for layer in (1, 2):
        trace = cut_trace.read_trace(tmp_path / f"tiny-model_l{layer:02d}.safetensors")
        assert trace.k.shape == trace.v.shape == (2, len(tokens), 16)
        assert trace.q.shape == (6, 6, 16)
        assert trace.q_pos.tolist() == [len(PROMPT) + i for i in range(0, decode_tokens, stride)]
        assert trace.metadata["n_prompt"] == str(len(PROMPT))
        assert trace.metadata["layer"] == str(layer)
        assert json.loads(trace.metadata["kv_heads"]) == [0, 1]
        assert float(trace.metadata["scale"]) == 0.25
        assert trace.metadata["model"] == "Tiny Model, run in float32"
        for i, position in enumerate(trace.q_pos):
            for head in range(6):
                query = trace.q[i, head].astype(np.float64)
                keys = trace.k[head // 3, : position + 1].astype(np.float64)
                values = trace.v[head // 3, : position + 1].astype(np.float64)
                score = 0.25 * keys @ query
                weight = np.exp(score - score.max())
                weight /= weight.sum()
                # q and k are each rounded to float16, at most 2^-11 relative: a score moves by at
                # most e, a weight by the factor exp(2 e); a value moves by 2^-11 of itself.
                # 1e-4 of the largest value is left for float32 in the model, three layers deep.
                e = 2**-10 * 0.25 * (np.abs(keys) @ np.abs(query)).max()
                limit = (np.expm1(2 * e) + 2**-11 + 1e-4) * np.abs(values).max()
                error = np.abs(weight @ values - outputs[layer][position, head]).max()
                assert error <= limit, (layer, int(position), head, error, limit)
                assert weight.max() > 2 / len(weight)  # not uniform: the check can fail


def test_kv_heads_come_with_their_query_heads(model_folder, tmp_path):
    arguments = ["--decode-tokens=5", "--query-stride=1", "--layers=1"]
    assert capture_traces.main(command(model_folder, tmp_path / "all", *arguments)) == 0
    arguments.append("--kv-heads=1")
    assert capture_traces.main(command(model_folder, tmp_path / "one", *arguments)) == 0
    both, one = (
        cut_trace.read_trace(tmp_path / kind / "tiny-model_l01.safetensors")
        for kind in ("all", "one")
    )
    assert one.kv_heads == [1]
    assert np.array_equal(one.k[0], both.k[1])
    assert np.array_equal(one.v[0], both.v[1])
    assert np.array_equal(one.q, both.q[:, 3:])


def test_heads_by_layer_come_from_one_run(llama_folder, tmp_path):
    arguments = ["--decode-tokens=5", "--query-stride=1"]
    both = [*arguments, "--layers=0,2"]
    assert capture_traces.main(command(llama_folder, tmp_path / "both", *both)) == 0
    some = [*arguments, "--keep=2:0,0:1"]
    assert capture_traces.main(command(llama_folder, tmp_path / "some", *some)) == 0
    for layer, head in ((0, 1), (2, 0)):
        name = f"tiny-model_l{layer:02d}.safetensors"
        whole, one = (cut_trace.read_trace(tmp_path / kind / name) for kind in ("both", "some"))
        assert one.kv_heads == [head] and one.k.shape[0] == 1
        assert np.array_equal(one.k[0], whole.k[head])
        assert np.array_equal(one.q, whole.q[:, 3 * head : 3 * head + 3])


def test_several_prompts_and_their_lengths(llama_folder, tmp_path):
    """Each prompt as if it were alone; a text loses its end, what stands behind it stays."""
    text = (llama_folder / "prompt.txt").read_text(encoding="utf-8")
    first, second = tmp_path / "a.txt", tmp_path / "b.txt"
    first.write_text(text, encoding="utf-8")
    second.write_text(text[::-1], encoding="utf-8")
    alone = tmp_path / "cut.txt"
    alone.write_text(text[:14] + "zyx", encoding="utf-8")
    common = [f"--model={llama_folder}", "--dtype=float32", "--name=m", "--layers=1"]
    common += ["--decode-tokens=3"]
    more = ["--prompt-tokens=17", f"--prompt-file={second}", "--prompt-tokens=99"]
    more += ["--question=zyx", f"--out={tmp_path}"]
    assert capture_traces.main([*common, f"--prompt-file={first}", *more]) == 0
    assert capture_traces.main([*common, f"--prompt-file={alone}", f"--out={tmp_path}"]) == 0
    cut = cut_trace.read_trace(tmp_path / "m_a_l01.safetensors")
    wanted = cut_trace.read_trace(tmp_path / "m_l01.safetensors")
    assert cut.metadata["n_prompt"] == "17" and cut.tokens == 20
    assert np.array_equal(cut.k, wanted.k) and np.array_equal(cut.q, wanted.q)
    assert cut_trace.read_trace(tmp_path / "m_b_l01.safetensors").tokens == len(PROMPT) + 3 + 3


def test_a_turn_stands_in_the_middle_of_the_decoded_tokens(llama_folder, tmp_path):
    """Decoding greedily, what comes before it and behind it is what prompts of that text give."""
    text = (llama_folder / "prompt.txt").read_text(encoding="utf-8")
    arguments = ["--layers=1", "--temperature=0", "--query-stride=1"]
    turned = [*arguments, "--decode-tokens=6", "--turn=zyxw"]
    assert capture_traces.main(command(llama_folder, tmp_path / "turn", *turned)) == 0
    found = cut_trace.read_trace(tmp_path / "turn" / "tiny-model_l01.safetensors")
    n = len(PROMPT)
    assert found.q_pos.tolist() == [n, n + 1, n + 2, n + 7, n + 8, n + 9]
    assert found.tokens == n + 10
    tokens, _ = reference(llama_folder, 3)
    said = "".join(chr(ord("!") + i - 3) for i in tokens[n:])
    (tmp_path / "whole.txt").write_text(text + said + "zyxw", encoding="utf-8")
    whole = [f"--model={llama_folder}", f"--prompt-file={tmp_path / 'whole.txt'}", *arguments]
    whole += ["--dtype=float32", "--name=m", "--decode-tokens=3", f"--out={tmp_path}"]
    assert capture_traces.main(whole) == 0
    wanted = cut_trace.read_trace(tmp_path / "m_l01.safetensors")
    # float32 sums in another order, then rounded to float16: a unit in its last place
    assert np.allclose(
        found.k.astype(np.float32), wanted.k.astype(np.float32), rtol=2**-10, atol=1e-4
    )
    assert np.allclose(
        found.q[3:].astype(np.float32), wanted.q.astype(np.float32), rtol=2**-10, atol=1e-4
    )


def test_a_model_that_is_loaded_keeps_its_attention(llama_folder, tmp_path):
    options = capture_traces.parse_arguments(
        command(llama_folder, tmp_path / "given", "--layers=1", "--decode-tokens=3")
    )
    model = transformers.AutoModelForCausalLM.from_pretrained(
        llama_folder, attn_implementation="eager", dtype=torch.float32
    ).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(llama_folder)
    capture_traces.run(options, tokenizer, model)
    assert model.config._attn_implementation == "eager"
    arguments = command(llama_folder, tmp_path / "own", "--layers=1", "--decode-tokens=3")
    assert capture_traces.main(arguments) == 0
    name = "tiny-model_l01.safetensors"
    assert (tmp_path / "given" / name).read_bytes() == (tmp_path / "own" / name).read_bytes()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--keep=1"], "'1', accepted: LAYER:HEAD"),
        (["--keep=1:x"], "'1:x', accepted: LAYER:HEAD"),
        (["--keep=1:0", "--kv-heads=0"], "--keep names heads itself"),
        (["--keep=1:0", "--layers=1"], "not allowed with"),
        (["--layers=1", "--prompt-file=b", "--prompt-tokens=9"], "one for each, or none"),
        (["--layers=1", "--prompt-file=x/prompt.txt"], "must differ"),
    ],
)
def test_options_that_do_not_fit_together(llama_folder, tmp_path, capsys, arguments, text):
    with pytest.raises(SystemExit) as stop:
        capture_traces.main(command(llama_folder, tmp_path, *arguments))
    assert stop.value.code == 2 and text in capsys.readouterr().err


def test_same_seed_same_bytes_and_another_seed_another_trace(model_folder, tmp_path):
    arguments = ["--decode-tokens=12", "--layers=1", "--temperature=1.5"]
    files = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        arguments_of_run = [*arguments, f"--seed={seed}"]
        assert capture_traces.main(command(model_folder, tmp_path / name, *arguments_of_run)) == 0
        files.append((tmp_path / name / "tiny-model_l01.safetensors").read_bytes())
    assert files[0] == files[1]
    assert files[0] != files[2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--layers=0,3"], "--layers [0, 3]: the model has layers 0..2"),
        (["--layers=0", "--kv-heads=2"], "--kv-heads [2]: layer 0 has KV heads 0..1"),
        (
            ["--layers=0", "--decode-tokens=89"],
            "40 prompt tokens + --decode-tokens 89 is 129, the model takes 128",
        ),
        (["--layers=0", "--chat"], "no chat template"),
        (
            ["--layers=0", "--question=zyxw", "--prompt-tokens=3"],
            "--prompt-tokens 3: the rest of the prompt alone has",
        ),
        (["--layers=0", "--max-error=0"], "allowed is --max-error 0.0"),
    ],
)
def test_refusals_name_the_value_and_write_nothing(llama_folder, tmp_path, capsys, arguments, text):
    out = tmp_path / "out"
    defaults = ["--decode-tokens=3"]
    assert capture_traces.main(command(llama_folder, out, *defaults, *arguments)) == 3
    assert text in capsys.readouterr().err
    assert not out.exists()


def test_an_existing_trace_stays_without_force(llama_folder, tmp_path, capsys):
    standing = tmp_path / "tiny-model_l00.safetensors"
    standing.write_bytes(b"mine")
    arguments = ["--layers=0,1", "--decode-tokens=3"]
    assert capture_traces.main(command(llama_folder, tmp_path, *arguments)) == 3
    assert "--force" in capsys.readouterr().err
    assert standing.read_bytes() == b"mine"
    assert capture_traces.main(command(llama_folder, tmp_path, *arguments, "--force")) == 0
    assert cut_trace.read_trace(standing).tokens == len(PROMPT) + 3
    assert not list(tmp_path.glob(".*"))


def test_a_trace_that_is_not_what_the_model_computed_is_refused(
    llama_folder, tmp_path, capsys, monkeypatch
):
    def to_trace(*arguments):
        trace = original(*arguments)
        trace.v = (trace.v * 1.25).astype(np.float16)
        return trace

    original = capture_traces.to_trace
    monkeypatch.setattr(capture_traces, "to_trace", to_trace)
    arguments = ["--layers=0", "--decode-tokens=3"]
    assert capture_traces.main(command(llama_folder, tmp_path / "out", *arguments)) == 3
    assert "layer 0: the trace's attention is off by 0.25" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_sliding_window_is_refused_unless_the_layer_sees_all(tmp_path, capsys):
    save_model(windowed(["full_attention", "sliding_attention"]), tmp_path)
    arguments = command(tmp_path, tmp_path / "out", "--decode-tokens=3")
    assert capture_traces.main([*arguments, "--layers=1"]) == 3
    assert "layer 1 sees 16 keys of 41: a sliding window" in capsys.readouterr().err
    assert capture_traces.main([*arguments, "--layers=0"]) == 0


def test_a_soft_cap_is_refused(tmp_path, capsys):
    config = transformers.Gemma2Config(**SIZES, query_pre_attn_scalar=16, sliding_window=128)
    save_model(config, tmp_path)
    arguments = command(tmp_path, tmp_path / "out", "--decode-tokens=3", "--layers=1")
    assert capture_traces.main(arguments) == 3
    assert "softcap" in capsys.readouterr().err
