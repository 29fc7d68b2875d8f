"""The decoding step of a case through the library: vote, select, rerank, fetch, attend."""

from functools import cached_property

import numpy as np
import structs
from binding import tensor
from numbers_of import LIBRARY_TYPES, lay_out, to_dtype, to_f32
from oracle import model, rerank, vote
from run import Run, patterned


class Steps(Run):
    @cached_property
    def votes(self):
        case = self.case
        stride = int(self.lengths.max()) + 3
        votes = patterned((case.batch * self.g.kv_heads, stride), np.float32)
        self.library.stage(
            "vote",
            query_heads=case.query_heads,
            vote_group=case.vote_group,
            rho_of=case.rho_of,
            codec=self.codec,
            batch=self.batch,
            queries=self.query_tensor(),
            store=self.encoded["store"],
            occupancy=self.encoded["occupancy"],
            votes=votes,
            votes_stride=stride,
        )
        return votes

    @cached_property
    def rule(self):
        schedule = self.case.schedule
        rule = structs.CandidateRule(k=self.case.k, steps=len(schedule))
        for i, (below, ppm) in enumerate(schedule):
            rule.below[i], rule.ppm[i] = below, ppm
        return rule

    def count(self, n):
        """The oracle's C."""
        return vote.candidate_count(n, self.case.k, self.case.schedule)

    @cached_property
    def candidate_stride(self):
        return max(self.count(n) for n in range(int(self.lengths.max()) + 1)) + 2

    @cached_property
    def selected(self):
        rows = self.case.batch * self.g.kv_heads
        candidates = patterned((rows, self.candidate_stride), np.int32)
        counts = patterned(rows, np.int32)
        self.library.stage(
            "select",
            kv_heads=self.g.kv_heads,
            batch=self.batch,
            rule=self.rule,
            votes=self.votes,
            votes_stride=self.votes.shape[1],
            candidates=candidates,
            candidates_stride=self.candidate_stride,
            candidate_counts=counts,
        )
        return candidates, counts

    def candidates(self, index):
        """Positions of one row."""
        positions, counts = self.selected
        return positions[index, : counts[index]]

    def samples(self, n):
        """The oracle's sample positions of a row."""
        return rerank.sample_positions(n, self.g.stride, self.case.tail_samples)

    @cached_property
    def reranked(self):
        case = self.case
        rows = case.batch * self.g.kv_heads
        out = {
            "positions": patterned((rows, case.k), np.int32),
            "scores": patterned((rows, case.k), np.float32),
            "counts": patterned(rows, np.int32),
            "estimates": patterned(
                (case.batch, case.query_heads, self.candidate_stride), np.float32
            ),
            "rest_lse": patterned((case.batch, case.query_heads), np.float32),
            "sample_estimates": patterned(
                (case.batch, case.query_heads, case.tail_samples), np.float32
            ),
        }
        if case.tail == model.DROP and case.index % 5 == 0:
            out["estimates"] = out["rest_lse"] = None
        if case.tail in (model.DROP, model.MEAN) and case.index % 3 == 0:
            out["sample_estimates"] = None
        self.library.stage(
            "rerank",
            query_heads=case.query_heads,
            rank=case.rank,
            k=case.k,
            k_min=min(case.k_min, case.k),
            tail_samples=case.tail_samples,
            weigh_norms=self.g.value_norm,
            scale=case.scale,
            soft_cap=case.soft_cap,
            share=case.share,
            codec=self.codec,
            batch=self.batch,
            queries=self.query_tensor(),
            store=self.encoded["store"],
            candidates=self.selected[0],
            candidates_stride=self.candidate_stride,
            candidate_counts=self.selected[1],
            **out,
        )
        return out

    @cached_property
    def fetched(self):
        """(keys, values) raw [b, h, k, d], values None without."""
        case, g = self.case, self.g
        shape = (case.batch, g.kv_heads, case.k)
        raw_type = self.source_keys.dtype
        layout = "padded" if case.layout == "reversed" else case.layout  # outputs: forwards
        keys = lay_out(patterned((*shape, g.head_dim), raw_type), layout)
        values = None
        if g.value_dim:
            values = lay_out(patterned((*shape, g.value_dim), raw_type), layout)
        self.library.stage(
            "fetch",
            kv_heads=g.kv_heads,
            batch=self.batch,
            source_keys=self.key_tensor(self.source_keys),
            source_values=self.key_tensor(self.source_values) if g.value_dim else tensor(None),
            positions=self.reranked["positions"],
            k=case.k,
            keys=self.key_tensor(keys),
            values=self.key_tensor(values) if g.value_dim else tensor(None),
        )
        return keys, values

    @cached_property
    def parts(self):
        """[(raw keys, raw values, lengths or None)] of the dense parts."""
        case, g, rng = self.case, self.g, np.random.default_rng(case_seed(self.case))
        parts = []
        for number in range(case.parts):
            tokens = (1, 33, 0, 5)[(number + case.index) % 4]
            shape = (case.batch, g.kv_heads, tokens)
            keys = to_dtype(rng.standard_normal((*shape, g.head_dim)), case.key_dtype)
            values = to_dtype(rng.standard_normal((*shape, g.value_dim)), case.key_dtype)
            keys = lay_out(keys, case.layout)
            values = lay_out(values, case.layout)
            if g.v_source == model.K_PREFIX:
                values = keys[..., : g.value_dim]
            lengths = None
            if number % 2 == 0:
                lengths = rng.integers(0, tokens + 1, case.batch).astype(np.int64)
            parts.append((keys, values, lengths))
        return parts

    @cached_property
    def sinks(self):
        """float32 [hq], one of several none, or None without sink logits."""
        if not self.case.has_sinks:
            return None
        rng = np.random.default_rng(case_seed(self.case) + 1)
        sinks = (4 * rng.standard_normal(self.case.query_heads)).astype(np.float32)
        sinks[1::5] = -np.inf
        return sinks

    @cached_property
    def attended(self):
        """(output raw [b, hq, dv], lse [b, hq])."""
        case, g = self.case, self.g
        raw_type = to_dtype(np.zeros(1), case.output_dtype).dtype
        base = patterned((case.batch, case.query_heads, g.value_dim + 4), raw_type)
        output = base[..., : g.value_dim]
        lse = patterned((case.batch, case.query_heads), np.float32)
        parts = (structs.Part * 4)()
        for number, (keys, values, lengths) in enumerate(self.parts):
            parts[number] = structs.Part(
                keys=self.key_tensor(keys),
                values=self.key_tensor(values),
                lengths=None if lengths is None else lengths.__array_interface__["data"][0],
            )
        fields = {}
        if case.k:
            keys, values = self.fetched
            if g.v_source == model.K_PREFIX:
                values = keys[..., : g.value_dim]
            fields = {"row_keys": self.key_tensor(keys), "row_values": self.key_tensor(values)}
        if case.tail != model.DROP:
            fields.update(
                candidates=self.selected[0],
                candidates_stride=self.candidate_stride,
                candidate_counts=self.selected[1],
                estimates=self.reranked["estimates"],
                rest_lse=self.reranked["rest_lse"],
                sample_estimates=self.reranked["sample_estimates"],
                value_sums=self.encoded["value_sums"],
                good_counts=self.encoded["good_counts"],
            )
        self.library.stage(
            "attend",
            query_heads=case.query_heads,
            tail=case.tail,
            part_count=case.parts,
            scale=case.scale,
            k=case.k,
            tail_samples=case.tail_samples,
            soft_cap=case.soft_cap,
            sink_logits=self.sinks,
            codec=self.codec,
            batch=self.batch,
            queries=self.query_tensor(),
            parts=parts,
            positions=self.reranked["positions"],
            counts=self.reranked["counts"],
            store=self.encoded["store"],
            output=tensor(output, LIBRARY_TYPES[case.output_dtype]),
            lse=lse,
            **fields,
        )
        gap = base[..., g.value_dim :]
        assert (gap == patterned(1, raw_type)[0]).all() or np.isnan(gap.astype(np.float32)).all()
        return output, lse

    def attention_rows(self, entry, head, index):
        """(keys [m, d], values [m, dv], fetched positions): dense parts, then fetched rows."""
        keys = [np.zeros((0, self.g.head_dim), np.float32)]
        values = [np.zeros((0, self.g.value_dim), np.float32)]
        for part_keys, part_values, lengths in self.parts:
            length = part_keys.shape[2] if lengths is None else lengths[entry]
            keys.append(to_f32(part_keys[entry, head, :length]))
            values.append(to_f32(part_values[entry, head, :length]))
        count = self.reranked["counts"][index]
        positions = self.reranked["positions"][index, :count]
        keys.append(self.keys[entry, head, positions])
        values.append(self.values[entry, head, positions])
        return np.concatenate(keys), np.concatenate(values), positions


def case_seed(case):
    return case.index + 20_000
