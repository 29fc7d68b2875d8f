"""bench.tasks with a tiny random model: prompts, one prefill for all methods, scores, sums."""

import json
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: tools/test_python")
pytest.importorskip("transformers", reason="transformers is not installed: tools/test_python")
pytest.importorskip("tqdm", reason="tqdm is not installed: tools/test_python")
sys.path.append(str(Path(__file__).resolve().parents[2]))
SHAPE = "sink=64+local=128+interval=128+dense_below=256+page_tokens=128"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(folder, tokenizer, model)"""
    import tiny_model

    folder = tmp_path_factory.mktemp("tiny")
    return (str(folder), *tiny_model.make(folder))


@pytest.fixture(scope="module")
def kit(tiny, pariskv):
    from bench.tasks import prompts, texts

    return prompts.Kit(tiny[1], texts.Corpus(tiny[1], texts.manual()))


def run(arguments, tmp_path):
    from bench.tasks import __main__ as program

    out = tmp_path / "out.json"
    code = program.main([*map(str, arguments), "--json", str(out)])
    return code, json.loads(out.read_text()) if out.is_file() else None


def test_prompts_have_their_length_and_hold_their_answers(kit):
    from bench.tasks import prompts

    for task in prompts.TASKS:
        made = [prompts.make(kit, task, number, 4500, seed=3) for number in (0, 1)]
        assert made[0] == prompts.make(kit, task, 0, 4500, seed=3) and made[0].ids != made[1].ids
        for prompt in made:
            assert len(prompt.ids) == 4500 and len(prompt.references) in (1, 4, 5, 10)
            context = kit.tokenizer.decode(prompt.ids[: -prompt.asked])
            question = kit.tokenizer.decode(prompt.ids[-prompt.asked :])
            assert len(set(prompt.references)) == len(prompt.references)
            for reference in prompt.references:
                assert reference in context and reference not in question, (task, reference)


def test_the_answer_belongs_to_the_question(kit):
    """Each kind once, solved from the text alone."""
    import re

    from bench.tasks import prompts

    for task in ("multikey", "multivalue", "multiquery", "multikey_lines"):
        prompt = prompts.make(kit, task, 5, 4500, seed=0)
        text = kit.tokenizer.decode(prompt.ids)
        facts = re.findall(r"magic numbers for (\S+) is: (\d{7})\.", text)
        asked = text.rpartition("magic number")[0].rpartition(" for ")[2]
        names = [name for name, _ in facts if name in asked]
        found = [value for name, value in facts if name in names]
        assert names and sorted(found) == sorted(prompt.references), task
    prompt = prompts.make(kit, "variables", 5, 4500, seed=0)
    text = kit.tokenizer.decode(prompt.ids[: -prompt.asked])
    value = re.search(r"assigned the value (\d+), they are:$", kit.tokenizer.decode(prompt.ids))[1]
    names = [re.search(rf"VAR (\w+) = {value}\n", text)[1]]
    while chained := re.search(rf"VAR (\w+) = VAR {names[-1]}\n", text):
        names.append(chained[1])
    assert names == prompt.references
    prompt = prompts.make(kit, "common_words", 5, 4500, seed=0)
    text = kit.tokenizer.decode(prompt.ids[: -prompt.asked]).rpartition("appear most often.\n")[2]
    words = re.findall(r"\d+\. (\w+)", text)
    often = sorted(set(words), key=lambda word: -words.count(word))[:10]
    assert sorted(often) == sorted(prompt.references) and words.count(often[9]) == 30
    assert max(words.count(word) for word in set(words) - set(often)) == 3
    prompt = prompts.make(kit, "qa_two_hop", 5, 4500, seed=0)
    text = kit.tokenizer.decode(prompt.ids)
    pupil = re.search(r"the teacher of (.+) born\?", text)[1]
    teacher = re.search(rf"{pupil} studied \w+ with ([^,]+),", text)[1]
    assert re.search(rf"{teacher} was born in (\w+),", text)[1] == prompt.references[0]


def test_a_length_without_room_is_refused(kit):
    from bench.tasks import prompts

    with pytest.raises(ValueError, match="too few"):
        prompts.make(kit, "common_words", 0, 600, seed=0)


def test_answers_end_with_the_text():
    from bench.tasks.answers import cut

    assert cut([5, 6, 0, 7], 4, {0}) == [5, 6] and cut([5, 6, 7], 2, {0}) == [5, 6]


def test_wins_and_losses_count_where_full_attention_can_do_it():
    from bench.tasks.summary import summarise

    def row(task, full, mine):
        return {"task": task, "length": 64, "scores": {"full": full, "mine": mine}}

    easy = [row("easy", 1, 1)] * 5 + [row("easy", 1, 0.5), row("easy", 0, 1), row("easy", 1, 0)]
    found = summarise([*easy, row("hard", 0, 1), row("hard", 0.5, 1)])
    assert [cell["counts"] for cell in found["per_task"]] == [True, False]
    full, mine = found["counted"]
    assert "wins" not in full and (mine["prompts"], mine["wins"], mine["losses"]) == (8, 1, 2)
    assert mine["net_percent"]["mean"] == -12.5 and mine["difference_percent"]["mean"] == -6.25
    assert mine["net_percent"]["low"] < -12.5 < mine["net_percent"]["high"]


@pytest.mark.parametrize("ask", ["prefill", "index"])
def test_all_rows_say_what_full_attention_says(tiny, pariskv, tmp_path, ask):
    folder, tokenizer, model = tiny
    methods = f"full,all+{SHAPE},default+{SHAPE},mapped+k=65536+candidates=1.0+{SHAPE}"
    code, found = run(
        ["--model", folder, "--methods", methods, "--lengths", "2k", "--prompts", 4, "--batch", 2,
         "--tasks", "single,multivalue", "--keep-text", "--ask", ask], tmp_path)  # fmt: skip
    assert code == 0 and len(found["results"]) == 4 and "stopped" not in found
    said = [list(row["said"].values()) for row in found["results"]]
    assert all(full == every == mapped for full, every, _, mapped in said)
    assert any(full != default for full, _, default, _ in said)
    assert len({texts[0] for texts in said}) == 4
    # And transformers alone says the same.
    from bench.tasks import prompts, texts

    kit = prompts.Kit(tokenizer, texts.Corpus(tokenizer, texts.manual()))
    for row, (full, *_) in zip(found["results"], said):
        prompt = prompts.make(kit, row["task"], row["number"], 2048, 0)
        assert row["references"] == prompt.references
        ids = torch.tensor([prompt.ids])
        out = model.generate(ids, max_new_tokens=prompt.new_tokens, do_sample=False)
        assert tokenizer.decode(out[0, 2048:], skip_special_tokens=True) == full


def test_a_map_keeps_attention_and_finds_more(pariskv):
    """On a trace: scores are the same but for a number per query, and of the exact best keys more
    are among as many candidates as with the library's own centre and balance."""
    from bench.maps import fitted
    from bench.rules import trace

    path = next((Path(__file__).resolve().parents[2] / "data" / "traces").glob("*l13*"))
    one = trace.load(str(path))
    keys = torch.from_numpy(one.keys[:, 128:-512].astype("float32"))
    values = torch.from_numpy(one.values[:, 128:-512].astype("float32"))
    queries = torch.from_numpy(one.queries.astype("float32")).transpose(0, 1)
    half = queries.shape[1] // 2
    fit, judges = queries[:, :half].contiguous(), queries[:, half:].contiguous()
    mean, found = (x.float() for x in fitted(keys, fit))
    mapped = (keys - mean) @ found.transpose(1, 2)
    group = len(queries) // len(keys)
    inverse = torch.linalg.inv(found).repeat_interleave(group, 0)
    there = [(q @ inverse).contiguous() for q in (fit, judges)]
    scores = judges @ keys.repeat_interleave(group, 0).transpose(1, 2)
    moved = there[1] @ mapped.repeat_interleave(group, 0).transpose(1, 2)
    gap = scores - moved
    assert (gap - gap.mean(-1, keepdim=True)).abs().max() < 1e-3 * scores.abs().max()
    best = scores.unflatten(0, (-1, group)).mean(1).topk(100, -1).indices  # [h, m, 100]

    def recall(k, seen, asked, **options):
        codec = pariskv.Codec.fit(k, seen, values, candidates=0.05, **options)
        index = pariskv.Index(codec, k.shape[1])
        index.append(k, values)
        batch = asked.transpose(0, 1).contiguous()
        hits = index.retrieve(batch, sequences=[0] * len(batch))
        some = hits.candidates.transpose(0, 1)  # [h, m, c]
        return (best[..., None] == some[:, :, None]).any(-1).float().mean().item()

    off = dict(center="off", balance="off", fit="keys")
    assert recall(mapped, there[0], there[1], **off) > recall(keys, fit, judges) + 0.02


def test_rows_of_a_batch_do_not_know_of_each_other(tiny, pariskv):
    """Prompts of unequal length: tokens and losses of a batch are those of each prompt alone,
    whatever the caches held before and however many rows they had."""
    from bench.tasks import caches, texts
    from bench.tasks.answers import greedy

    _, tokenizer, model = tiny
    methods = ["full", f"default+{SHAPE}+k=40", f"paper+{SHAPE}+k=40", f"all+{SHAPE}",
               f"mapped+{SHAPE}+k=40"]  # fmt: skip
    ids = tokenizer(texts.manual()[:20000]).input_ids
    rows = [ids[begin : begin + n] for begin, n in ((0, 900), (500, 700), (3000, 460), (90, 700))]

    def said(world, some):
        held, logits = world.prefill(some, max(map(len, some)) + 16)
        return {
            method: world.decode(cache, logits, some, 16, greedy, lambda _: False)
            for method, cache in held.items()
        }

    with torch.inference_mode():
        world = caches.World(model, methods)
        together, pair = said(world, rows), said(world, rows[1:3])
        alone = [said(world, [row]) for row in rows]
        fresh = said(caches.World(model, methods), [rows[3]])
    for method in methods:
        wanted = [one[method][0] for one in alone]
        assert together[method] == wanted and pair[method] == wanted[1:3], method
        assert fresh[method] == wanted[3:], method
    assert together["full"] == together[methods[3]] != together[methods[1]]
    assert len({tuple(tokens) for tokens in together["full"]}) == 4


@pytest.mark.parametrize("suite", ["perplexity", "drift"])
def test_a_run_that_is_cut_keeps_what_it_has(tiny, pariskv, tmp_path, monkeypatch, suite):
    """Methods take turns, so that all have come equally far."""
    from bench.tasks import job

    methods = f"full,default+{SHAPE}"
    arguments = ["--suite", suite, "--model", tiny[0], "--methods", methods, "--prompt", 700,
                 "--tokens", 256, "--every", 64, "--block", 16, "--batch", 2, "--text", "manual",
                 "--pieces", 2]  # fmt: skip
    _, whole = run(arguments, tmp_path)
    turns = iter([True] * (3 if suite == "perplexity" else 2))
    monkeypatch.setattr(job.Clock, "has", lambda self, seconds: next(turns, False))
    code, cut = run(arguments, tmp_path)
    assert code == 0 and "at 128 tokens" in cut["stopped"]
    assert {row["tokens"] for row in cut["totals"].values()} == {2 * 128}
    if suite == "drift":
        assert cut["loss"] == [row for row in whole["loss"] if row["from"] < 700 + 128]
        assert cut["recall"] == whole["recall"][: len(cut["recall"])] != []
    # What was written after the last turn is what the run gave.
    monkeypatch.setattr(job.Clock, "has", lambda self, seconds: True)
    monkeypatch.setattr(job.Job, "save", stop_after(2, job.Job.save))
    with pytest.raises(KeyboardInterrupt):
        run(arguments, tmp_path)
    left = json.loads((tmp_path / "out.json").read_text())
    assert left["totals"] == cut["totals"]


def stop_after(count, save):
    left = iter(range(count))

    def saving(self, found):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return save(self, found)

    return saving


def test_it_ends_in_time_with_what_there_is(tiny, pariskv, tmp_path):
    code, found = run(["--model", tiny[0], "--minutes", 0, "--lengths", 2048], tmp_path)
    assert code == 0 and found["results"] == [] and "--minutes" in found["stopped"]


def test_perplexity_is_the_models(tiny, pariskv, tmp_path):
    folder, tokenizer, model = tiny
    code, found = run(
        [
            "--suite",
            "perplexity",
            "--model",
            folder,
            "--methods",
            f"full,all+{SHAPE}",
            "--prompt",
            700,
            "--tokens",
            70,
            "--pieces",
            2,
            "--text",
            "manual,project",
            "--batch",
            3,
        ],
        tmp_path,
    )
    assert code == 0 and len(found["results"]) == 8
    full, every = found["totals"].values()
    assert full["tokens"] == 280 and abs(every["change_percent"]) < 1e-3
    from bench.tasks import texts

    wanted = []
    for name in ("manual", "project"):
        ids = tokenizer(texts.read(name)).input_ids
        for begin in (0, len(ids) - 771):
            some = torch.tensor([ids[begin : begin + 771]])
            with torch.no_grad():
                logits = model(some).logits[0, 700:-1]
            wanted.append(torch.nn.functional.cross_entropy(logits, some[0, 701:]).item())
    losses = [row["loss"] for row in found["results"] if row["method"] == "full"]
    assert losses == pytest.approx(wanted, abs=1e-4)
    assert full["loss"] == pytest.approx(sum(wanted) / 4, abs=1e-4)


def test_drift_sees_both_codecs(tiny, pariskv, tmp_path):
    methods = f"full,default+{SHAPE},default+{SHAPE}+candidates=1.0"
    code, found = run(
        ["--suite", "drift", "--model", tiny[0], "--methods", methods, "--prompt", 1500,
         "--tokens", 512, "--every", 128, "--batch", 2, "--text", "manual"], tmp_path)  # fmt: skip
    assert code == 0 and len(found["recall"]) == 8 and len(found["loss"]) == 12
    for row in found["recall"]:
        assert row["tokens"] in (1628, 1756, 1884, 2012)
        if "candidates" in row["method"]:
            assert row["recall"] == row["recall_refitted"] == 1
        else:
            assert 0.05 < row["recall"] < 1 and 0.05 < row["recall_refitted"] < 1
    assert len({row["recall_refitted"] for row in found["recall"]}) > 2


def test_yarn_stretches_the_positions(tiny, pariskv, tmp_path):
    from bench.tasks import __main__ as program

    options = program.parse(["--model", tiny[0], "--yarn", "2"])
    _, stretched = program.load(options)
    ids = torch.arange(60)[None]
    assert stretched.config.max_position_embeddings == 2 * 8192
    with torch.no_grad():
        a, b = (model(ids).logits for model in (stretched, tiny[2]))
    assert not torch.allclose(a, b, atol=1e-3)
    assert torch.equal(stretched.lm_head.weight, tiny[2].lm_head.weight)


def test_usage_errors_name_the_choices(tiny, pariskv, capsys):
    from bench.tasks import __main__ as program

    for arguments, wanted in (
        (["--methods", "quest"], "choose from full, default"),
        (["--methods", "full+k=3"], "all but full"),
        (["--methods", "default+k"], "NAME=VALUE"),
        (["--tasks", "sing"], "choose from single_noise"),
        (["--lengths", "4x"], "no number of tokens"),
        (["--every", "1000", "--block", "16"], "multiple"),
    ):
        with pytest.raises(SystemExit) as caught:
            program.main(["--model", tiny[0], *arguments])
        assert caught.value.code == 2 and wanted in capsys.readouterr().err, arguments
