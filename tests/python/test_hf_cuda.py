"""pariskv.hf on a CUDA device: tiny random models, plain and with captured steps."""

import pytest
from gpu import cuda, torch  # noqa: F401

pytest.importorskip("transformers", reason="transformers is not installed: tools/test_python")
from test_hf import ALL, GREEDY, LENGTH, NEW, SHAPE, tiny  # noqa: E402

pytestmark = pytest.mark.gpu
CAPTURED = dict(captured=1024, **ALL)


@pytest.fixture(scope="module")
def hf(cuda):  # noqa: F811
    import pariskv.hf

    return pariskv.hf


@pytest.fixture(scope="module")
def ids():
    made = torch.Generator().manual_seed(1)
    return torch.randint(2, 96, (1, LENGTH), generator=made).cuda()


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "gemma3", "mistral_window"])
def model(request, hf, ids):
    made = tiny(request.param).cuda()
    made.reference = made.generate(ids, **GREEDY)
    assert len(set(made.reference[0, -NEW:].tolist())) > 3
    return made


@pytest.mark.parametrize("options", [ALL, CAPTURED], ids=["plain", "captured"])
def test_all_rows_give_the_tokens_of_full_attention(hf, model, ids, options):
    hf.enable(model, **options)
    output = model.generate(ids, return_dict_in_generate=True, **GREEDY)
    assert torch.equal(output.sequences, model.reference)
    cache = output.get("past_key_values") or output.get("cache")
    assert cache.store.device.backend == "cuda"
    assert (cache.captured is not None) == (options is CAPTURED)
    assert cache.get_seq_length() == cache.store.length(cache.slots[0]) == LENGTH + NEW - 1


def test_captured_steps_go_on_past_intervals(hf, ids):
    """200 tokens: the zone grows, and is fitted, while the graph stays."""
    long = dict(max_new_tokens=200, min_new_tokens=200, do_sample=False)
    made = tiny("llama").cuda()
    hf.enable(made, **ALL)
    wanted = made.generate(ids, **long)
    hf.enable(made, **CAPTURED)
    cache = hf.Cache(made, **CAPTURED)
    found = made.generate(ids, past_key_values=cache, **long)
    assert torch.equal(found, wanted)
    regions = cache.store.regions(cache.slots[0])
    assert regions.zone >= 384 and regions.fits > 1
    graph = cache.captured
    cache.crop(-100)  # the same graph goes on behind what is taken back
    rest = dict(max_new_tokens=99, min_new_tokens=99, do_sample=False)
    mask = torch.ones_like(found[:, :-99])  # token 0 is no padding
    again = made.generate(found[:, :-99], past_key_values=cache, attention_mask=mask, **rest)
    assert torch.equal(again, wanted) and cache.captured is graph


@pytest.mark.parametrize("options", [ALL, CAPTURED], ids=["plain", "captured"])
def test_padding_batches_drafts_and_chunks(hf, ids, options):
    made = tiny("llama").cuda()
    reference = made.generate(ids, **GREEDY)
    hf.enable(made, **options)
    mask = torch.ones(3, LENGTH, dtype=torch.long, device="cuda")
    mask[1, :7] = mask[2, :130] = 0
    batch = ids.repeat(3, 1).masked_fill(mask == 0, 0)
    found = made.generate(batch, attention_mask=mask, **GREEDY)
    for row, padding in enumerate((0, 7, 130)):
        alone = made.generate(batch[row : row + 1, padding:], **GREEDY)
        assert torch.equal(alone[0, -NEW:], found[row, -NEW:])
    pair = made.generate(ids.repeat(2, 1), **GREEDY)
    assert torch.equal(pair, reference.repeat(2, 1))
    assert torch.equal(made.generate(ids, prompt_lookup_num_tokens=4, **GREEDY), reference)
    assert torch.equal(made.generate(ids, prefill_chunk_size=48, **GREEDY), reference)


def test_a_captured_step_in_bfloat16_is_the_plain_one(hf, ids):
    made = tiny("llama").to("cuda", torch.bfloat16)
    few = dict(k=16, candidates=0.1, **SHAPE)
    hf.enable(made, **few)
    logits = []
    for options in (dict(deferred=1), dict(captured=1024)):
        cache = hf.Cache(made, **few, **options)
        with torch.no_grad():
            made(ids, past_key_values=cache)
            if "deferred" in options:
                cache.store.flush()
            steps = [made(ids[:, i : i + 1], past_key_values=cache).logits for i in range(20)]
        logits.append(torch.cat(steps))
    assert cache.captured is not None
    assert (logits[0] - logits[1]).abs().max() <= 2e-2 * logits[0].abs().max()
