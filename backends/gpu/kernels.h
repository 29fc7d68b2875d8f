// The kernels by the names that launches give them, for the device option `paths`;
// tests/unit/paths_test.py holds the list against the sources.
#pragma once

namespace pkv::gpu {

inline constexpr const char* kKernels[] = {
    "adapt_hits",       "advance_states",    "attend_slots",       "best_counts",
    "best_digits_0",    "best_digits_1",     "best_digits_2",      "best_of_short_rows",
    "best_places",      "choose_short_hits", "encode_tiles",       "estimate_keys",
    "export_records",   "fetch_rows",        "finish_rows",        "fit_finish",
    "fit_keys",         "fit_queries",       "graded_tables",      "import_records",
    "merge_parts",      "merge_slots",       "place_fetched_rows", "place_hits",
    "place_rows",       "prepare_estimates", "prepare_queries",    "prepare_step",
    "score_candidates", "sort_hits",         "tier_tables",        "vote_and_count_keys",
    "vote_keys",        "write_words"};

}  // namespace pkv::gpu
