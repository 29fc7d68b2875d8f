#!/usr/bin/env python3
"""run_mutants.py PKV_CONFORMANCE MUTANTS_LIBRARY [--table FILE --lanes LIBRARY | --check FILE]

Runs pkv-conformance on each faulty backend, over the cases that must notice its fault, and prints
which one did. Fails if a fault goes unnoticed, if the same cases find one in the backend without
faults, and if one that is only less precise, within its rights, does not pass. `--table` writes
what was found as a page, docs/mutants.md, with what was found in the lane mutants of
tests/unit/gpu; `--check` runs nothing, and fails if the page's faults are not those that exist.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "unit" / "gpu"))
import lane_mutants_test  # noqa: E402

# Fault -> the cases that must notice it.
MUTANTS = {
    "fit_drops_last_key": "fit/values/*novalues*",
    "fit_squares_off": "fit/widths/*",
    "fit_counts_query_twice": "fit/sample/*",
    "fit_count_is_weight": "fit/weights/*",
    "fit_ignores_weights": "fit/weights/*",
    "fit_first_weights": "fit/weights/*",
    "fit_counts_heads": "fit/query_sums/*",
    "encode_sign_bit": "encode/scalar4/d*",
    "encode_code_bit": "encode/scalar5/d*",
    "encode_factor_ulp": "encode/polar4/d*",
    "encode_vote_factor_ulp": "encode/lengths/*",
    "encode_minus_zero": "encode/*_plain_*zero*",
    "encode_bad_key_factor": "encode/scalar4/*one_nan*",
    "encode_sketch_bit": "encode/sketch/*",
    "encode_skips_first_sketch": "encode/pieces/*",
    "encode_counts_bad_keys": "encode/scalar4/*one_inf*",
    "encode_first_bad_of_call": "encode/pieces/*",
    "encode_loses_occupancy": "encode/polar4_tier/*",
    "encode_overwrites_sums": "encode/pieces/*",
    "encode_ignores_key_strides": "encode/layouts/*padded*",
    "encode_ignores_value_strides": "encode/layouts/*token_major*",
    "encode_eight_entries": "encode/batches/*",
    "encode_first_head": "encode/heads/*",
    "encode_ignores_sets": "encode/sets*",
    "store_imports_at_zero": "store/*",
    "store_imports_sketch_early": "store/*_stride16/*",
    "store_exports_sketch_early": "store/*_stride3/*",
    "store_exports_one_more": "store/scalar4_graded/*",
    "vote_ulp": "vote/graded/d*_g4_n65/b1",
    "vote_bad_key": "vote/*one_nan*",
    "vote_behind_row": "vote/tier/d*_g4_n65/b1",
    "vote_behind_end": "vote/tier/d*_g4_n65/b1",
    "vote_in_front": "vote/tier/d*_g4_n65/b1",
    "vote_writes_query": "vote/graded/d*_g4_n65/b1",
    "vote_writes_store": "vote/graded/d*_g4_n65/b1",
    "vote_differs_by_run": "vote/graded/d*_g4_n65/b1",
    "vote_sums_heads": "vote/graded_heads/*",
    "vote_rho_of_keys": "vote/tier_centroids/*",
    "vote_ignores_strides": "vote/*token_major*",
    "vote_uses_entries": "vote/graded/*/b3",
    "vote_ignores_sets": "vote/graded/*_sets3*",
    "vote_late_pages": "vote/graded/*_page64*",
    "vote_scratch_is_zero": "vote/graded/d*_g4_n65/b1",
    "vote_refuses_late": "vote/graded/d*_g4_n65/b1",
    "select_larger_position": "select/levels/*",
    "select_misses_one": "select/normal/*",
    "select_unordered": "select/normal/*",
    "select_filler": "select/normal/*",
    "select_leaves_counts": "select/normal/*",
    "select_reads_beyond": "select/normal/*",
    "select_chooses_nan": "select/*_nan/*",
    "select_orders_zeros": "select/zeros/*",
    "select_compares_halves": "select/close/*",
    "select_drops_infinities": "select/few_finite/*",
    "rerank_estimate_ulp": "rerank/scalar4_group/d*_g4_n65/b1",
    "rerank_polar_estimate": "rerank/polar4_group/d*_g4_n65/b1",
    "rerank_score_order": "rerank/scalar5_group/d*_g4_n65/b1",
    "rerank_tie_order": "rerank/*equal*",
    "rerank_misses_best": "rerank/scalar5_mean/*",
    "rerank_filler": "rerank/*_k100*",
    "rerank_stale_count": "rerank/*_k100*",
    "rerank_rest_base_2": "rerank/scalar4_group/d*_g4_n65/b1",
    "rerank_rest_not_inf": "rerank/*all_bad*",
    "rerank_rest_of_all": "rerank/*_t7/*",
    "rerank_rest_sample_off": "rerank/*_t*/*",
    "rerank_rest_of_good": "rerank/*one_nan*",
    "rerank_rest_of_zone": "rerank/scalar4_group/d*_g4_n65/b1",
    "rerank_rest_with_candidates": "rerank/scalar4_group/d*_g4_n65/b1",
    "rerank_sample_ulp": "rerank/scalar4_mean/*",
    "rerank_polar_sample": "rerank/polar4_group/d*_g4_n65/b1",
    "rerank_sample_filler": "rerank/*_t7/*",
    "rerank_sample_bad": "rerank/*all_bad*",
    "rerank_samples_no_candidates": "rerank/scalar5_mean/*",
    "rerank_samples_off_stride": "rerank/*_stride3*",
    "rerank_ignores_share": "rerank/*_share*",
    "rerank_ignores_k_min": "rerank/*_share*",
    "rerank_ignores_norms": "rerank/*_norms/*",
    "rerank_by_mean": "rerank/scalar4_group/d*_g4_n65/b1",
    "rerank_ignores_scale": "rerank/scalar4_group/d*_g4_n65/b1",
    "rerank_ignores_strides": "rerank/*_padded*",
    "rerank_eight_entries": "rerank/*/b9",
    "rerank_ignores_sets": "rerank/*_sets3*",
    "rerank_ignores_cap": "rerank/scalar4_group/*_cap0.5*",
    "rerank_late_pages": "rerank/scalar4_group/*_page64*",
    "rerank_no_limit": "rerank/*huge_q_huge*",
    "fetch_shifted": "fetch/widths/*",
    "fetch_filler": "fetch/widths/*",
    "fetch_whole_units": "fetch/widths/*",
    "fetch_quietens_nan": "fetch/dtypes/*",
    "fetch_wraps_offsets": "fetch/layouts/*_from_wide_tokens/*",
    "fetch_reads_behind": "fetch/counts/*",
    "fetch_skips_values": "fetch/dtypes/*",
    "fetch_ignores_source_strides": "fetch/layouts/*_from_token_major/*",
    "fetch_ignores_target_strides": "fetch/layouts/*_to_token_major/*",
    "fetch_late_pages": "fetch/pages/*",
    "fetch_key_offset": "fetch/pages/*",
    "fetch_uses_entries": "fetch/batches/*",
    "attend_base_2": "attend/dense/*",
    "attend_lse_not_inf": "attend/parts/*",
    "attend_output_scaled": "attend/dense/*",
    "attend_output_rounded": "attend/dense/*",
    "attend_stale_rows": "attend/rows/*",
    "attend_whole_parts": "attend/lengths/*",
    "attend_skips_part": "attend/parts/*",
    "attend_mean_of_all_keys": "attend/mean/*one_nan*",
    "attend_drops_candidates": "attend/mean/*",
    "attend_counts_twice": "attend/mean/*",
    "attend_sketch_as_mean": "attend/sketch/*",
    "attend_ignores_samples": "attend/sampled/*",
    "attend_reads_bad_samples": "attend/sampled/*one_nan*",
    "attend_first_samples": "attend/sampled/*",
    "attend_sampled_as_mean": "attend/sampled/*",
    "attend_trusts_samples": "attend/sampled/*",
    "attend_half_at_16": "attend/sketch/*_samples7*",
    "attend_never_whole": "attend/sketch/*",
    "attend_always_whole": "attend/sampled/*",
    "attend_samples_by_count": "attend/sampled/*",
    "attend_samples_unweighted": "attend/sampled/*",
    "attend_samples_candidates": "attend/sketch/*",
    "attend_samples_fetched": "attend/sampled/*",
    "attend_samples_rest_only": "attend/sampled/*",
    "attend_samples_first": "attend/sampled/*_samples11*",
    "attend_mean_as_drop": "attend/mean/*",
    "attend_first_value_center": "attend/sketch/*",
    "attend_ignores_scale": "attend/dense/*",
    "attend_ignores_cap": "attend/caps_drop/*",
    "attend_ignores_sinks": "attend/sinks_drop/*",
    "attend_ignores_sets": "attend/sets/*",
    "attend_starts_early": "attend/pages/*",
    "attend_late_store_pages": "attend/store_pages/*",
    "attend_ignores_output_strides": "attend/layouts/*_to_token_major*",
    "attend_ignores_part_strides": "attend/layouts/*_padded*",
    "attend_in_front": "step/default/*/b1",
    "step_swaps_hits": "step/default/*",
    "step_moves_score": "step/default/*",
    "step_writes_source": "step/default/*",
    "step_forgets_last_part": "step/default/*",
    "step_ignores_source_strides": "step/default/*padded*",
}

# Not faulty, but in fp32 where cpu_ref uses double: all cases that reach it must let it pass.
OTHERS = {
    "single_attend": ("attend/*", "cache/*", "golden/*", "step/*"),
    "single_rerank": ("rerank/*", "cache/*", "golden/*", "step/*"),
    "single_fit": ("fit/*",),
}


def run(conformance, library, mutant, glob):
    """(cases that failed, all that ran, what the program printed on stderr)"""
    environment = dict(os.environ, PKV_CONFORMANCE_MUTANT=mutant)
    done = subprocess.run(
        [conformance, "--backend", library, "--filter", glob, "--json"],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        return [], [], done.stderr
    cases = json.loads(done.stdout)["cases"]
    return [case for case in cases if case["outcome"] == "failed"], cases, done.stderr


TABLE_HEAD = """# What the conformance suite notices

Each line is a backend with one deliberate fault: cpu_ref's table with one slot wrapped, or cpu's
for a whole step (`tests/conformance/mutants`). The test `conformance.mutants` runs the cases that
must notice the fault, and fails if none does, or if one finds a fault in the backend without.
Beside these stand %d backends that are only less precise, within their rights, and must pass.

Made by `run_mutants.py .. --table docs/mutants.md --lanes ..`; seconds are of all the cases run, on
two cores.

| fault | cases run | that notice it | the first of them | seconds |
|---|---:|---:|---|---:|
"""


LANES_HEAD = """
## Lanes

The GPU kernels on the host's executor, whose lane group operations are right on 32 lanes alone
(`tests/unit/gpu/lane_mutants.cpp`). With `lanes=32` nothing notices, with `lanes=64` these do; the
test is `unit.gpu_lane_mutants`.

| fault | cases run | that notice it | the first of them | seconds |
|---|---:|---:|---|---:|
"""


def table_line(mutant, cases, failed, seconds):
    first = failed[0]["name"] if failed else "**none**"
    return f"| {mutant} | {cases} | {len(failed)} | `{first}` | {seconds:.2f} |\n"


def lane_lines(conformance, library):
    text = ""
    for mutant, stages in lane_mutants_test.FINDS.items():
        start, ran, failed = time.monotonic(), 0, []
        for stage in stages:
            glob = lane_mutants_test.CASES[stage]
            found, count = lane_mutants_test.run(conformance, library, mutant, 64, glob)
            failed, ran = failed + found, ran + count
        cases = [{"name": name} for name in failed]
        text += table_line(mutant, ran, cases, time.monotonic() - start)
    return text


def check_page(page, known):
    """Complaints about the faults that a page names."""
    named = re.findall(r"^\| (\w+) \| *\d", page.read_text(), re.MULTILINE)
    wanted = (known - set(OTHERS)) | set(lane_mutants_test.MUTANTS)
    wrong = sorted(set(named) ^ wanted | {name for name in named if named.count(name) > 1})
    for name in wrong:
        print(f"{name}: in {page} or among the faults, but not once in both")
    if "**none**" in page.read_text():
        print(f"{page}: a fault that nothing noticed")
    print(f"{page}: {len(named)} faults")
    return len(wrong) + ("**none**" in page.read_text()) + (not named)


def known_mutants(conformance, library):
    """Those that the library has."""
    _, _, text = run(conformance, library, "?", "*")
    return set(text.partition("mutants:")[2].partition("\n")[0].split())


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("conformance")
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--lanes", type=os.path.abspath, help="the lane mutants' library")
    parser.add_argument("--check", type=Path)
    options = parser.parse_args()
    if bool(options.table) != bool(options.lanes):
        parser.error("--table and --lanes go together")
    return options


def main():
    options = parse()
    conformance, library = options.conformance, options.library
    table = TABLE_HEAD % len(OTHERS)
    faults = 0
    known = known_mutants(conformance, library)
    if options.check:
        sys.exit(bool(check_page(options.check, known)))
    for name in sorted(known ^ set(MUTANTS) ^ set(OTHERS)):
        print(f"{name}: in the library or in this table, but not in both")
        faults += 1
    sound = {}
    for glob in sorted(set(MUTANTS.values())):
        failed, cases, text = run(conformance, library, "", glob)
        sound[glob] = len(cases)
        if failed or not cases:
            print(f"{glob}: the backend without faults: {failed or text}")
            faults += 1
    for mutant, glob in MUTANTS.items():
        start = time.monotonic()
        failed, _, text = run(conformance, library, mutant, glob)
        table += table_line(mutant, sound[glob], failed, time.monotonic() - start)
        if failed:
            first = failed[0]
            print(
                f"{mutant}: {len(failed)} of {sound[glob]}, first {first['name']}: {first['text']}"
            )
        else:
            print(f"{mutant}: NOT NOTICED by any of {glob}: {text}")
            faults += 1
    for other, globs in OTHERS.items():
        failed, count = [], 0
        for glob in globs:
            found, cases, text = run(conformance, library, other, glob)
            if not cases:
                print(f"{other}: none of {glob} ran: {text}")
                faults += 1
            failed, count = failed + found, count + len(cases)
        faults += bool(failed)
        print(f"{other}: {count - len(failed)} of {count} let it pass")
        for case in failed:
            print(f"  {case['name']}: {case['text']}")
    print(f"{len(MUTANTS)} faulty backends, {len(OTHERS)} others, {faults} complaints")
    if options.table:
        table += LANES_HEAD + lane_lines(conformance, options.lanes)
        options.table.write_text(table)
    sys.exit(bool(faults) or not MUTANTS)


if __name__ == "__main__":
    main()
