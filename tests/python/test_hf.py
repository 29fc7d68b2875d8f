"""pariskv.hf under tiny random models of each architecture."""

import gc

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: tools/test_python")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: tools/test_python"
)

SHAPE = dict(sink=16, local=32, interval=32, dense_below=64, page_tokens=64)
ALL = dict(k=4096, candidates=1.0, **SHAPE)
LENGTH, NEW = 260, 24
GREEDY = dict(max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False)
KINDS = ["llama", "mistral", "mistral_window", "qwen2", "qwen3", "gemma3"]


def tiny(kind):
    """A random model whose attention decides what it says."""
    options = dict(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=96,
    )
    name, _, window = kind.partition("_")
    if name == "mistral":
        options["sliding_window"] = 48 if window else None
    if name == "gemma3":
        layers = ["sliding_attention", "full_attention"]
        options.update(sliding_window=32, layer_types=layers)
    classes = {
        "llama": transformers.LlamaConfig,
        "mistral": transformers.MistralConfig,
        "qwen2": transformers.Qwen2Config,
        "qwen3": transformers.Qwen3Config,
        "gemma3": transformers.Gemma3TextConfig,
    }
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(classes[name](**options)).eval()
    model.generation_config.eos_token_id = 96
    for weights in model.parameters():
        if weights.dim() > 1:
            weights.data.normal_(0, 0.3)
    return model


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def hf(pariskv):
    import pariskv.hf

    return pariskv.hf


@pytest.fixture(scope="module")
def ids():
    return torch.randint(2, 96, (1, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model(kind, hf, ids):
    made = tiny(kind)
    made.reference = made.generate(ids, **GREEDY)
    return hf.enable(made, **ALL)


@pytest.fixture(scope="module")
def llama(hf, ids):
    made = tiny("llama")
    made.reference = made.generate(ids, **GREEDY)
    return hf.enable(made, **ALL)


def cache_of(output):
    return output.get("past_key_values") or output.get("cache")


def test_all_rows_give_the_tokens_of_full_attention(model, kind, ids):
    output = model.generate(ids, return_dict_in_generate=True, **GREEDY)
    assert torch.equal(output.sequences, model.reference)
    assert len(set(model.reference[0, -NEW:].tolist())) > 3  # or nothing would be shown
    cache = cache_of(output)
    regions = [cache.store.regions(cache.slots[0], layer) for layer in range(2)]
    windows = {"mistral_window": [0, 1], "gemma3": [0]}.get(kind, [])
    assert [layer for layer in range(2) if not regions[layer].is_encoded] == windows
    assert cache.get_seq_length() == regions[0].tokens == LENGTH + NEW - 1
    if kind == "llama":  # rows that are left out are missed
        few = type(cache)(model, k=1, candidates=0.01, tail="drop", **SHAPE)
        assert not torch.equal(few_tokens(model, few, ids), model.reference)


def few_tokens(model, cache, ids):
    return model.generate(ids, past_key_values=cache, **GREEDY)


def test_prefill_in_chunks(model, ids):
    found = model.generate(ids, prefill_chunk_size=48, **GREEDY)
    assert torch.equal(found, model.reference)


def test_padded_batches_give_what_each_gives_alone(model, ids):
    padding = [0, 7, 130]
    mask = torch.ones(3, LENGTH, dtype=torch.long)
    for row, count in enumerate(padding):
        mask[row, :count] = 0
    batch = ids.repeat(3, 1).masked_fill(mask == 0, 0)
    output = model.generate(batch, attention_mask=mask, return_dict_in_generate=True, **GREEDY)
    cache = cache_of(output)
    for row, count in enumerate(padding):
        alone = model.generate(batch[row : row + 1, count:], **GREEDY)
        assert torch.equal(alone[0, -NEW:], output.sequences[row, -NEW:])
        assert cache.store.length(cache.slots[row]) == LENGTH - count + NEW - 1


def test_padding_behind_a_prompt_is_not_stored(llama, hf, ids):
    mask = torch.ones(2, LENGTH, dtype=torch.long)
    mask[1, 200:] = 0
    cache = hf.Cache(llama, **ALL)
    with torch.no_grad():
        padded = llama(ids.repeat(2, 1), attention_mask=mask, past_key_values=cache).logits
        wanted = llama(ids, use_cache=False).logits
    assert (padded[1, :200] - wanted[0, :200]).abs().max() < 1e-3
    assert [cache.store.length(slot) for slot in cache.slots] == [LENGTH, 200]
    cache.crop(torch.tensor(-80))  # as assisted decoding counts on a GPU
    assert isinstance(cache.get_seq_length(), int)
    assert [cache.store.length(slot) for slot in cache.slots] == [180, 180]


def test_drafts_are_taken_back(model, ids):
    """Prompt lookup: most guesses are wrong."""
    found = model.generate(ids, prompt_lookup_num_tokens=4, **GREEDY)
    assert torch.equal(found, model.reference)


@pytest.mark.parametrize("sparse_assistant", [False, True])
def test_an_assistant_drafts(llama, hf, ids, sparse_assistant):
    """A model that is nearly the same: some of its drafts are accepted whole, some in part."""
    assistant = tiny("llama")
    noise = torch.Generator().manual_seed(3)
    for weights in assistant.parameters():
        if weights.dim() > 1:
            weights.data += torch.randn(weights.shape, generator=noise) * 0.01
    if sparse_assistant:
        hf.enable(assistant, **ALL)
    widths = []
    hook = llama.register_forward_pre_hook(
        lambda module, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    options = dict(max_new_tokens=NEW, do_sample=False)  # 4.57 takes no minimum here
    try:
        found = llama.generate(ids, assistant_model=assistant, **options)
    finally:
        hook.remove()
    made = found.shape[1] - LENGTH
    assert made > 8 and torch.equal(found, llama.reference[:, : LENGTH + made])
    assert len(widths) < made < sum(widths[1:])  # fewer forwards; some drafts taken back


def test_encoding_may_wait_for_captured_steps(hf, ids):
    """Without a GPU there is no graph, and the same tokens come."""
    made = tiny("llama")
    reference = made.generate(ids, **GREEDY)
    hf.enable(made, captured=1024, **ALL)
    output = made.generate(ids, return_dict_in_generate=True, **GREEDY)
    assert torch.equal(output.sequences, reference)
    cache = cache_of(output)
    assert cache.store.shape["deferred"] == 1 and cache.captured is None
    assert cache.store.regions(cache.slots[0]).is_encoded
    hf.disable(made)
    assert not {"forward", "generate"} & made.__dict__.keys()


def test_a_prompt_is_used_again_through_a_fork(llama, hf, ids):
    prefix = hf.Cache(llama, **ALL)
    with torch.no_grad():
        llama(ids[:, :200], past_key_values=prefix)
    first = llama.generate(ids, past_key_values=prefix.fork(), **GREEDY)
    other = torch.cat([ids[:, :200], ids[:, :30]], 1)
    second = llama.generate(other, past_key_values=prefix.fork(), **GREEDY)
    assert torch.equal(first, llama.reference)
    assert torch.equal(second, llama.generate(other, **GREEDY))
    gc.collect()
    assert prefix.store.stats().sequences == 1 and prefix.get_seq_length() == 200


def test_rows_may_be_repeated_and_dropped(llama, hf, ids):
    cache = hf.Cache(llama, **ALL)
    with torch.no_grad():
        llama(ids[:, :200], past_key_values=cache)
        cache.batch_repeat_interleave(3)
        tokens = torch.tensor([[5], [6], [7]])
        three = llama(tokens, past_key_values=cache).logits
        cache.batch_select_indices(torch.tensor([2, 0]))
        two = llama(torch.tensor([[8], [8]]), past_key_values=cache).logits
        for row, before in ((0, 7), (1, 5)):
            alone = torch.cat([ids[:, :200], torch.tensor([[before, 8]])], 1)
            logits = llama(alone, use_cache=False).logits
            assert (two[row, -1] - logits[0, -1]).abs().max() < 1e-3
            place = {7: 2, 5: 0}[before]
            assert (three[place, -1] - logits[0, -2]).abs().max() < 1e-3
    assert cache.store.stats().sequences == 2


def test_without_a_cache_attention_is_full(llama, hf, ids):
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    with torch.no_grad():
        found = llama(ids, attention_mask=mask, use_cache=False).logits[:, 9:]
        plain = llama.generate(ids, use_cache=False, **GREEDY)
        hf.disable(llama)
        try:
            wanted = llama(ids, attention_mask=mask, use_cache=False).logits[:, 9:]
        finally:
            hf.enable(llama, **ALL)
    assert (found - wanted).abs().max() < 1e-3
    assert torch.equal(plain, llama.reference)


def test_settings_arrive_and_misspelt_ones_are_refused(pariskv, hf, ids):
    made = tiny("llama")
    hf.enable(made, sink=8, local=32, interval=64, dense_below=64, page_tokens=64, k=77,
              candidates=0.5, backend="cpu_ref")  # fmt: skip
    output = made.generate(ids, max_new_tokens=2, return_dict_in_generate=True)
    cache = cache_of(output)
    regions = cache.store.regions(cache.slots[0])
    assert (regions.sink, regions.zone) == (8, 192) and regions.tail == regions.tokens - 200
    assert cache.store.config["k"] == "77" and cache.store.device.backend == "cpu_ref"
    with pytest.raises(pariskv.NotFoundError, match="kandidates"):
        hf.enable(made, kandidates=0.5)
    with pytest.raises(pariskv.InvalidArgumentError, match="k"):
        hf.enable(made, k=-1)
    with pytest.raises(pariskv.InvalidArgumentError, match="sink"):
        hf.enable(made, sink=-1)


def test_what_is_not_supported_says_so(hf, llama, ids):
    with pytest.raises(NotImplementedError, match="num_beams=1"):
        llama.generate(ids, num_beams=2, max_new_tokens=2)
    for config in (transformers.GPT2Config(), transformers.DeepseekV3Config()):
        with pytest.raises(hf.UnsupportedModelError, match=r"llama \(Llama, SmolLM2\)"):
            hf.shape_of(config)
    with pytest.raises(hf.UnsupportedModelError, match="latent"):
        hf.shape_of(transformers.DeepseekV3Config())
    cache = hf.Cache(llama, **ALL)
    with pytest.raises(ValueError, match="4 axes"), torch.no_grad():
        llama(ids, attention_mask=torch.ones(1, 1, LENGTH, LENGTH), past_key_values=cache)
    with pytest.raises(RuntimeError, match="gradients"):
        llama(ids, past_key_values=cache)
    assert torch.get_num_threads() >= 1


def test_the_number_of_threads_of_torch_stays(llama, ids):
    """Products of matrices between calls of the library: two thread pools in one process."""
    before = torch.get_num_threads()
    matrix = torch.ones(64, 64)
    for _ in range(3):
        llama.generate(ids, max_new_tokens=4)
        assert (matrix @ matrix)[0, 0] == 64
    assert torch.get_num_threads() == before
