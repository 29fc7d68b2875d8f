"""bench.whole_model on the CPU, with a tiny model: all kinds of attention give the same tokens, and
what does not fit is said."""

import json
import sys
from pathlib import Path

import pytest
from gpu import cuda, torch  # noqa: F401

sys.path.append(str(Path(__file__).resolve().parents[2]))

TINY = (
    "--layers 2 --hidden 96 --query-heads 4 --kv-heads 2 --head-dim 64 --ffn 160 --vocabulary 211 "
    "--dtype float32 --device cpu --replays 3"
)
COUNT, BATCH, STEPS = 2500, 2, 5


@pytest.fixture
def whole(pariskv):
    from bench import whole_model

    yield whole_model
    torch.set_grad_enabled(True)


@pytest.fixture
def parts(whole):
    """(geometry, model, random tokens); everything in float32."""
    from bench.whole.attention import Tokens
    from bench.whole.model import Geometry, Model

    torch.set_grad_enabled(False)
    geometry = Geometry(2, 96, 4, 2, 64, 160, 211)
    model = Model(geometry, COUNT + STEPS, torch.float32, "cpu")
    for layer in model.layers:
        layer.output.mul_(20)  # so that logits show what attention does
    return geometry, model, Tokens(geometry, BATCH, COUNT, torch.float32, "cpu")


def decoded(model, attend):
    """Logits of some steps [steps, b, vocabulary]."""
    from bench.whole.steps import Steps

    steps, found = Steps(model, attend, BATCH, COUNT), []
    for _ in range(STEPS):
        steps.run()
        found.append(steps.logits.clone())
    assert steps.positions.tolist() == [COUNT + STEPS] * BATCH
    return torch.stack(found)


def full(parts, form="cpu grouped"):
    from bench.whole.attention import Full

    geometry, model, tokens = parts
    attend = Full(geometry, tokens)
    attend.choose(form)
    return decoded(model, attend)


def over_index(package, parts, shared=False, **options):
    from bench.whole.attention import OverIndex, Zone

    geometry, model, tokens = parts
    zone = COUNT - 128 - 768
    size = BATCH * geometry.kv_heads * zone * 2 * geometry.head_dim * 4
    device = package.device("cpu")
    memory = Zone(size * (1 if shared else geometry.layers), torch.float32, device)
    rows = memory.layers(tokens, geometry.layers)
    assert len(rows) == (1 if shared else 2)
    attend = OverIndex(geometry, tokens, rows, options)
    attend.cache_rows(64 if shared else 0)  # changes no bit
    found = decoded(model, attend)
    attend.close()
    return found


class Growing:
    """Attention in double over everything that has come."""

    def __init__(self, geometry, tokens):
        self.group = geometry.query_heads // geometry.kv_heads
        self.pairs = [
            [tokens.keys.double(), tokens.values.double()] for _ in range(geometry.layers)
        ]

    def begin(self, positions):
        pass

    def __call__(self, layer, query, key, value):
        pair = self.pairs[layer]
        for place, new in enumerate((key, value)):
            pair[place] = torch.cat([pair[place], new.double().unsqueeze(2)], 2)
        keys, values = (part.repeat_interleave(self.group, 1) for part in pair)
        scores = torch.einsum("bhd,bhnd->bhn", query.double(), keys) * query.shape[-1] ** -0.5
        return torch.einsum("bhn,bhnd->bhd", scores.softmax(-1), values).float()


ALL = dict(candidates=1.0, k=COUNT)


def test_all_candidates_give_the_tokens_of_full_attention(parts, pariskv):
    wanted = full(parts)
    # float32 sums of 2,500 terms, through two layers; logits are about 1.
    for found in (full(parts, "cpu by head"), over_index(pariskv, parts, **ALL)):
        assert (found - wanted).abs().max() < 1e-4
        assert torch.equal(found.argmax(-1), wanted.argmax(-1))
    assert torch.equal(
        over_index(pariskv, parts, shared=True, **ALL), over_index(pariskv, parts, **ALL)
    )
    few = over_index(pariskv, parts, candidates=0.02, k=8, tail="drop")
    assert (few - wanted).abs().max() > 1e-2  # or the above could not fail


def test_a_cache_appends_every_step(parts, pariskv):
    from bench.whole.attention import OverCache

    geometry, model, tokens = parts
    attend = OverCache(geometry, tokens, 600, dict(candidates=1.0, k=COUNT + 600))
    assert attend.cache.regions(1, 1).is_encoded
    found, wanted = decoded(model, attend), decoded(model, Growing(geometry, tokens))
    assert [attend.cache.length(s, layer) for s in (0, 1) for layer in (0, 1)] == [
        COUNT + STEPS
    ] * 4
    assert (found - wanted).abs().max() < 1e-4
    assert (found[-1] - full(parts)[-1]).abs().max() > 1e-5  # which forgets the oldest
    usage = attend.usage()
    assert usage["kv_host_bytes"] >= COUNT * BATCH * 2 * 2 * 2 * 64 * 4
    attend.close()


def test_the_geometry_is_llamas():
    from bench.whole.model import Geometry

    assert Geometry().weights() == 8_030_261_248
    assert Geometry().weights_read() == 8_030_261_248 - 128256 * 4096


def test_a_model_holds_what_its_geometry_says(parts):
    geometry, model, _ = parts
    held = [model.embedding, model.head, model.norm]
    held += [tensor for layer in model.layers for tensor in vars(layer).values()]
    assert sum(tensor.numel() for tensor in held) == geometry.weights()


def run(whole, tmp_path, more):
    output = tmp_path / "whole.json"
    assert whole.main([*TINY.split(), *more.split(), "--output", str(output), "--force"]) == 0
    return json.loads(output.read_text())


def test_results_have_a_row_of_every_configuration(whole, tmp_path, capsys):
    found = run(whole, tmp_path, "--shapes 2K,2x3000")
    for name in ("command", "device", "driver", "date", "versions", "geometry", "dtype", "room"):
        assert name in found
    assert found["weights"] == "random" and found["geometry"]["hidden"] == 96
    rows = [(row["method"], row["batch"], row["tokens"]) for row in found["rows"]]
    over_pairs = [(m, *shape) for shape in ((1, 2048), (2, 3000)) for m in whole.METHODS[:3]]
    assert rows == [*over_pairs, ("cache", 1, 2048), ("cache", 2, 3000)]
    for row in found["rows"]:
        assert row["is_finite"] and row["replays"] == 3 and row["setting"] == "plain calls"
        times, rates = row["step_ms"], row["tokens_per_second"]
        assert 0 < times["min"] <= times["median"] <= times["max"]
        for time, name in (("min", "max"), ("median", "median"), ("max", "min")):
            wanted = row["batch"] * 1e3 / times[time]
            assert abs(rates[name] - wanted) <= 0.01 + 1e-3 * wanted
        own = 2 * 2 * 2 * 64 * 4 * row["tokens"] * row["batch"]  # layers, K and V, heads, d, f32
        held = row["kv_device_bytes"] + row.get("kv_host_bytes", 0)
        assert own <= held < 1.5 * own
        assert ("records_device_bytes" in row) == (row["method"] != "full")
    assert [row["rows"] for row in found["rows"][:2]] == ["device", "host"]
    ratios = found["ratios"]
    assert len(ratios) == 6
    full_rate, ours = (row["tokens_per_second"]["median"] for row in found["rows"][:2])
    assert ratios[0]["to_full_same_batch"] == pytest.approx(ours / full_rate, rel=0.02, abs=2e-3)
    assert [row.get("row_cache") for row in found["rows"][:3]] == [None, 0, 512]
    flushed = found["rows"][6]
    assert flushed["flush_ms"] > 0
    rates = flushed["tokens_per_second"]
    assert rates["median_with_flush"] <= rates["median"]
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 9 and shown[0].split()[:3] == ["method", "batch", "tokens"]


def test_what_does_not_fit_is_refused_with_its_numbers(whole, tmp_path):
    gib = 1 << 30
    layer = 2 * 2 * (3000 - 896) * 64 * 4  # of a sequence's zone
    host = f"--host-memory {2.5 * 2 * layer / gib:.9f}"  # of two and a half sequences
    found = run(whole, tmp_path, f"--shapes 4x3000 --methods full,index {host}")
    full_row, ours = found["rows"]
    assert full_row["batch"] == 4 and "smaller_because" not in full_row
    assert (ours["wanted"], ours["batch"]) == (4, 2) and "step_ms" in ours
    assert "pinned host memory" in ours["smaller_because"]
    assert found["ratios"][0]["to_full_same_batch"] is None
    found = run(whole, tmp_path, f"--shapes 4x3000 --methods index --shared-rows {host}")
    assert found["rows"][0]["batch"] == 4 and found["rows"][0]["rows_of_layers"] == 1
    found = run(whole, tmp_path, "--shapes 3000 --host-memory 0 --methods index,cache")
    for row in found["rows"]:
        assert "step_ms" not in row
        assert "needs" in row["refused"] and "there are 0.0 GiB" in row["refused"]
    found = run(whole, tmp_path, "--shapes 3000 --device-memory 1 --methods full")
    assert "needs 2.0 GiB of device memory" in found["rows"][0]["refused"]


def test_llama_at_1m_is_refused_on_a_host_of_128_gib(pariskv):
    from bench.whole import room
    from bench.whole.model import Geometry

    there = room.Room(device=124 * room.GIB, host=120 * room.GIB)
    codec = pariskv.Codec.fit(
        torch.randn(8, 512, 128), values=torch.randn(8, 512, 128), candidates=0.02, tail="mean"
    )

    def need(count, size=2):
        return lambda batch: room.need_of_index(Geometry(), batch, count, size, codec, 512)

    batch, why = room.largest_batch(1, need(1 << 20), there, shares=False)
    assert batch == 0 and "needs 127.9 GiB of pinned host memory, there are 120.0 GiB" in why
    assert room.largest_batch(1, need(1 << 20), there, shares=True) == (1, None)
    batch, why = room.largest_batch(8, need(1 << 17), there, shares=False)
    assert batch == 7 and "pinned" in why
    assert room.largest_batch(1, need(3 << 17), there, shares=False) == (1, None)
    full_need = lambda batch: room.need_of_full(Geometry(), batch, 1 << 20, 2)  # noqa: E731
    assert room.largest_batch(1, full_need, there, False)[0] == 0


def test_no_time_left(whole, tmp_path):
    found = run(whole, tmp_path, "--shapes 2048 --minutes 0 --methods full,index")
    assert [row["trouble"] for row in found["rows"]] == ["--minutes have passed"] * 2


def test_results_are_written_after_every_configuration(whole, tmp_path, monkeypatch):
    counts = []
    monkeypatch.setattr(whole, "write", lambda _, found: counts.append(len(found["rows"])))
    more = ["--shapes", "2048", "--methods", "full,index", "--output", str(tmp_path / "a")]
    whole.main([*TINY.split(), *more])
    assert counts == [1, 2]


def test_what_fails_leaves_the_rest(whole, tmp_path, monkeypatch):
    from bench.whole import attention

    def broken(*_):
        raise RuntimeError("out of order")

    monkeypatch.setattr(attention, "Full", broken)
    found = run(whole, tmp_path, "--shapes 2048 --methods full,index")
    assert found["rows"][0]["trouble"] == "RuntimeError: out of order"
    assert "step_ms" in found["rows"][1]


@pytest.mark.parametrize(
    "more, word",
    [
        ("--shapes 8y128K", "BATCHxTOKENS"),
        ("--shapes 0x128K", "BATCHxTOKENS"),
        ("--shapes 3", "16..2147483647"),
        ("--methods fast", "full, index, row-cache, cache"),
        ("--replays 0", "--replays"),
        ("--set k", "OPTION=VALUE"),
        ("--output {here}/none/a.json", "no folder"),
        ("--output {here}", "--force"),
    ],
)
def test_bad_input_is_refused(whole, tmp_path, capsys, more, word):
    with pytest.raises(SystemExit) as ended:
        whole.main([*TINY.split(), *more.format(here=tmp_path).split()])
    assert ended.value.code == 2 and word in capsys.readouterr().err


@pytest.mark.gpu
def test_a_graph_gives_the_bits_of_plain_calls(cuda, whole, tmp_path):  # noqa: F811
    tiny = TINY.replace("--device cpu", "--device cuda").replace("float32", "bfloat16").split()
    output = tmp_path / "whole.json"
    assert whole.main([*tiny, "--shapes", "2x8K", "--output", str(output)]) == 0
    rows = json.loads(output.read_text())["rows"]
    assert [row["setting"] for row in rows] == ["one graph"] * 4
    assert all(row["is_finite"] for row in rows)
    assert [row.get("graph_equals_plain") for row in rows] == [True, True, True, None]
