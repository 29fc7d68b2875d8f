"""File formats: what one backend saves, every other one loads."""

import pytest
from capi import DATA_LOSS, SAVE_OVERWRITE, Codec, Config, Index, refused
from decoding import Plan, Step
from reference import normal


@pytest.mark.parametrize("tail", ["drop", "mean", "sampled", "sketch2"])
@pytest.mark.parametrize("profile", ["default", "paper"])
def test_a_file_means_the_same_on_every_backend(machine, other_machine, tmp_path, profile, tail):
    dim, n, heads = 64, 1000, 2
    keys, values, query = normal(1, heads, n, dim), normal(2, heads, n, dim), normal(3, 1, 4, dim)
    config = Config(machine, profile, head_dim=dim, k=50, tail=tail)
    codec = Codec.fit(machine, config, keys, query[0, :, None], values)
    index = Index(machine, codec, 1, n)
    index.append(0, keys, values)
    step = Step(Plan(machine, index, config, 1, 4)).retrieve(query)
    path = tmp_path / "a.pkv"
    index.save(path)

    other_config = Config(other_machine, profile, head_dim=dim, k=50, tail=tail)
    loaded = Index.load(other_machine, path)
    numbers = codec.numbers()
    stored = Codec.stored(other_machine, other_config, *numbers.values())
    restored = Index(other_machine, stored, 1, n + 7)
    restored.append(0, keys[:, :9], values[:, :9])
    restored.restore(path)
    for copy in (loaded, restored):
        assert copy.length(0) == n
        assert copy.content() == index.content()
        again = Step(Plan(other_machine, copy, other_config, 1, 4)).retrieve(query)
        for head in range(heads):
            assert again.chosen(0, head).tolist() == step.chosen(0, head).tolist()
        assert again.positions.tobytes() == step.positions.tobytes()
        if machine.backend == other_machine.backend:
            assert again.scores.tobytes() == step.scores.tobytes()
        # What is appended afterwards goes on from there.
        copy.save(path, SAVE_OVERWRITE)
        assert Index.load(machine, path).content() == index.content()


def test_a_changed_byte_is_refused_and_the_index_goes_on(machine, tmp_path):
    dim, n = 16, 60
    keys, query = normal(4, 1, n, dim), normal(5, 1, 1, dim)
    config = Config(machine, head_dim=dim, v_source="none", tail="drop", k=9)
    codec = Codec.fit(machine, config, keys)
    saved, used = (Index(machine, codec, 1, n) for _ in range(2))
    saved.append(0, keys)
    used.append(0, keys[:, 20:50])
    path = tmp_path / "a.pkv"
    saved.save(path)
    good = path.read_bytes()
    plan = Plan(machine, used, config, 1, 1)
    before = Step(plan).retrieve(query)
    for at in range(0, len(good), 13):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x40]) + good[at + 1 :])
        with refused(DATA_LOSS, "a.pkv"):
            used.restore(path)
    after = Step(plan).retrieve(query)
    assert after.positions.tobytes() == before.positions.tobytes()
    assert after.scores.tobytes() == before.scores.tobytes()
