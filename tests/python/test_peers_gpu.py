"""bench.peers_gpu on the CPU: each batched torch peer against its rule in bench/rules."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2]))

torch = pytest.importorskip("torch", reason="torch is not installed (bench/requirements.txt)")

from bench.peers_gpu import base, magicpig, methods  # noqa: E402
from bench.rules import magicpig as magicpig_rule  # noqa: E402
from bench.rules.base import Geometry, regions_at, subset_weights  # noqa: E402

B, H, G, D, N, SINK, LOCAL, K = 2, 2, 3, 32, 1024, 16, 48, 40
TOKENS = SINK + N + LOCAL


class World:
    """The same tokens as the peers take them and as the rules do."""

    def __init__(self):
        random = np.random.default_rng(3)
        shape = B, H, TOKENS, D
        self.keys = (random.standard_normal(shape) + 0.5).astype(np.float32)
        self.values = random.standard_normal(shape).astype(np.float32)
        self.query = (1.5 * random.standard_normal((B, H * G, D))).astype(np.float32)
        parts = []
        for array in (self.keys, self.values):
            whole = torch.from_numpy(array)
            dense = torch.cat([whole[:, :, :SINK], whole[:, :, -LOCAL:]], 2)
            # as a piece of pinned memory has them: K and V of a token side by side
            zone = torch.stack([whole[:, :, SINK:-LOCAL]] * 2, 3)[..., 0, :]
            parts += [zone, dense]
        self.problem = base.Problem(parts[0], parts[2], parts[1], parts[3], H * G)
        self.geometry = Geometry(D, D, G, D**-0.5, SINK, LOCAL, K, 2 * D, 2 * D)

    def answers(self, make):
        """[b][h] (rule, answer) of a rule for each row; make() gives a new rule."""
        found = []
        for b, h in np.ndindex(B, H):
            rule, keys, values = make(), self.keys[b, h], self.values[b, h]
            rule.build(keys, values, self.query[b, None, h * G : (h + 1) * G], [TOKENS - 1])
            regions = regions_at(TOKENS - 1, SINK, LOCAL)
            found.append((rule, self.answer(rule, b, h, regions)))
        return found

    def answer(self, rule, b, h, regions):
        query = self.query[b, h * G : (h + 1) * G]
        answer = rule.select(query, self.keys[b, h], self.values[b, h], regions)
        weights = answer.weights
        if weights is None:
            weights = subset_weights(query, self.keys[b, h], regions, answer.rows, D**-0.5)
        answer.output = weights @ self.values[b, h]
        return answer

    def check(self, peer, answers, tolerance=2e-5):
        query = torch.from_numpy(self.query)
        rows, out = peer.select(query).flatten(0, 1), peer.step(query).view(B * H, G, D)
        twin = peer.copy()
        assert torch.equal(twin.step(query).view(B * H, G, D), out)
        for i, (_, answer) in enumerate(answers):
            assert set(rows[i].tolist()) == set((answer.rows - SINK).tolist())
            assert np.abs(out[i].numpy() - answer.output).max() < tolerance


@pytest.fixture(scope="module")
def world():
    return World()


def rule_of(world, module, name, **params):
    return lambda: getattr(module, name)(world.geometry, **params)


def test_exact_and_quest(world):
    from bench.rules import dense, quest

    world.check(methods.Exact(world.problem, K), world.answers(rule_of(world, dense, "Exact")))
    world.check(methods.Quest(world.problem, K), world.answers(rule_of(world, quest, "Quest")))


def test_shadowkv(world, monkeypatch):
    from bench.rules import shadowkv

    monkeypatch.setattr(methods.ShadowKV, "RANK", 8)
    monkeypatch.setattr(methods.ShadowKV, "OUTLIERS", 5)
    peer = methods.ShadowKV(world.problem, K)
    answers = world.answers(rule_of(world, shadowkv, "ShadowKV", rank=8, outliers=5))
    for i, (rule, answer) in enumerate(answers):  # its rows include those of outlier chunks
        mine = peer.outliers.flatten(0, 1)[i].sort().values.numpy()
        assert (mine == rule.outliers).all()
        answer.rows = np.setdiff1d(
            answer.rows, rule.rows_of(rule.outliers, regions_at(TOKENS - 1, SINK, LOCAL))
        )
    world.check(peer, answers, 1e-4)


def test_pqcache_orders_as_the_same_codebook_does(world):
    pytest.importorskip("faiss", reason="faiss is not installed (bench/requirements.txt)")
    import faiss

    from bench.rules import pqcache

    answers = world.answers(rule_of(world, pqcache, "PQCache"))
    centroids = [
        faiss.vector_to_array(rule.index.pq.centroids).reshape(2, 64, D // 2) for rule, _ in answers
    ]
    peer = methods.PQCache(world.problem, K)
    peer.build(torch.from_numpy(np.stack(centroids)).view(B, H, 2, 64, D // 2))
    wanted = [rule.index.search(mean_of(world, i), K)[0][0] for i, (rule, _) in enumerate(answers)]
    got = peer.scores(torch.from_numpy(world.query)).topk(K).values.flatten(0, 1).numpy()
    assert np.abs(got - np.stack(wanted)).max() < 1e-4
    world.check(peer, answers)


def mean_of(world, i):
    return world.query.reshape(B * H, G, D)[i].mean(0, keepdims=True)


def test_pqcache_trains_a_codebook(world):
    peer = methods.PQCache(world.problem, K)
    keys = peer.parts(world.problem.keys)
    codes = peer.encoded(world.problem.keys)  # [b, h, 2, n]
    near = peer.centroids.gather(3, codes[..., None].expand(*codes.shape, D // 2))
    lost = (keys - near).square().mean() / keys.var()
    first = keys[:, :, :, :64]
    assert lost < 0.75 < 1 and not torch.equal(first, peer.centroids)


def test_rabitq(world):
    pytest.importorskip("faiss", reason="faiss is not installed (bench/requirements.txt)")
    from bench.rules import rabitq

    answers = world.answers(rule_of(world, rabitq, "RaBitQ", query_bits=0, candidates=0.08))
    rotation = answers[0][0].rotation.apply_py(np.eye(D, dtype=np.float32))  # rows are images
    peer = methods.RaBitQ(world.problem, K)
    peer.SHARE = 0.08
    peer.build(torch.from_numpy(rotation))
    some = peer.candidates(torch.from_numpy(world.query)).flatten(0, 1)
    for i, (_, answer) in enumerate(answers):
        wanted = set((answer.candidates - SINK).tolist())
        assert len(wanted & set(some[i].tolist())) >= len(wanted) - 1  # a tie at the end
    world.check(peer, answers)


def test_magicpig(world, monkeypatch):
    monkeypatch.setattr(magicpig.MagicPIG, "BITS", 5)
    monkeypatch.setattr(magicpig.MagicPIG, "TABLES", 24)
    answers = world.answers(rule_of(world, magicpig_rule, "MagicPIG", bits=5, tables=24))
    planes = torch.from_numpy(answers[0][0].planes)
    peer = magicpig.MagicPIG(world.problem, K, room=1.0, planes=planes)
    query = torch.from_numpy(world.query)
    hits, out = peer.hits(query).flatten(0, 1), peer.step(query).view(B * H, G, D)
    rows, total = (x.flatten(0, 1) for x in peer.sampled(query))
    for i, (rule, answer) in enumerate(answers):
        assert (hits[i].numpy() == rule.sample(world.query.reshape(B * H, G, D)[i])).all()
        for g in range(G):
            wanted = answer.head_rows[g] - SINK
            assert rows[i, g, : total[i, g, 0]].tolist() == wanted.tolist()
        assert np.abs(out[i].numpy() - answer.output).max() < 1e-4
    assert peer.lost(query) == 0 and 0 < total.min() and total.max() < N
    tight = magicpig.MagicPIG(world.problem, K, room=0.001, planes=planes)
    assert tight.lost(query) == int(total.max()) - tight.room > 0
    assert torch.isfinite(tight.step(query)).all()


def test_a_pinned_view_says_where_the_numbers_lie():
    whole = torch.arange(24, dtype=torch.bfloat16).view(2, 3, 2, 2)
    view = whole[..., 1, :]
    told = base.PinnedView(view).__cuda_array_interface__
    assert told["data"][0] == whole.data_ptr() + 4 and told["shape"] == (2, 3, 2)
    assert told["strides"] == (24, 8, 2) and told["typestr"] == "<i2"


def test_rows_of_every_method(monkeypatch, tmp_path, capsys):
    from bench import gpu_peers
    from bench.peers_gpu import __main__ as program

    monkeypatch.setattr(gpu_peers, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_peers, "CALLS", 2)
    out = tmp_path / "out.json"
    arguments = "--device cpu --n 1024,1000 --memory 0.01 --repeat 2 --json"
    assert program.main([*arguments.split(), str(out)]) == 0
    found = json.loads(out.read_text())
    rows = found["results"]
    assert [row["method"] for row in rows[:7]] == [
        "full", "exact", "quest", "pqcache", "magicpig", "shadowkv", "rabitq"]  # fmt: skip
    for row in rows[:7]:
        assert 0 < row["min_us"] <= row["median_us"] <= row["max_us"], row
    assert rows[0]["device_bytes_per_key"] == rows[1]["device_bytes_per_key"] == 512
    assert rows[2]["device_bytes_per_key"] == 512 + 32
    told = {row["method"]: row["trouble"] for row in rows[7:] if "trouble" in row}
    assert set(told) == {"quest"} and "whole pages" in told["quest"]
    assert "x full" in capsys.readouterr().out
    assert program.main([*arguments.split(), str(out), "--minutes", "0"]) == 0
    with pytest.raises(SystemExit):
        program.main(["--methods", "h2o"])


def test_shapes_with_batches_and_a_row_that_fails(monkeypatch, tmp_path, capsys):
    """Ours cannot be opened here, and one peer breaks: their rows say so, the others have times."""
    from bench import gpu_peers
    from bench.peers_gpu import __main__ as program

    def breaks(self, query):
        raise AssertionError("broken on purpose")

    monkeypatch.setattr(gpu_peers, "DEVICE", "cpu")
    monkeypatch.setattr(gpu_peers, "CALLS", 2)
    monkeypatch.setattr(methods.PQCache, "step", breaks)
    out = tmp_path / "out.json"
    arguments = "--device cpu --n 512 --batches 2x512,3x256 --memory 0.01 --repeat 2 --row-cache 0"
    arguments += f" --methods full,quest,pqcache,rabitq --prefix {tmp_path} --json {out}"
    assert program.main(arguments.split()) == 0
    rows = json.loads(out.read_text())["results"]
    shapes = [(1, 512), (2, 512), (3, 256)]
    names = ["full", "default", "quest", "pqcache", "rabitq"]
    assert [(row["batch"], row["n"], row["method"]) for row in rows] == [
        (*shape, name) for shape in shapes for name in names
    ]
    for row in rows:
        assert ("trouble" in row) == (row["method"] in ("default", "pqcache")), row
        assert "trouble" in row or row["median_us"] > 0
    assert rows[3]["trouble"] == "AssertionError: broken on purpose"
    assert "broken on purpose" in capsys.readouterr().out
    for wrong in ("8", "8x", "x"):
        with pytest.raises(SystemExit):
            program.main(["--batches", wrong])
