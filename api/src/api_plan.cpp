// Exported functions of section "Plan and decoding step".
#include <memory>
#include <optional>
#include <utility>

#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/index/index.h"
#include "core/pipeline/step.h"
#include "core/plan/plan.h"
#include "pariskv/pariskv.h"

namespace {

// Structs that lie within another one have its size for good.
pkv_rows empty_rows() {
  pkv_rows rows{};
  rows.struct_size = sizeof rows;
  return rows;
}

pkv_plan_desc default_desc() {
  pkv_plan_desc desc{};
  desc.batch = 1;
  return desc;
}

pkv_attention default_attention() {
  pkv_attention attention{};
  for (pkv_dense& dense : attention.dense) dense.rows = empty_rows();
  attention.rows = empty_rows();
  return attention;
}

pkv_step default_step() {
  pkv_step step{};
  for (pkv_dense& dense : step.dense) dense.rows = empty_rows();
  step.source = empty_rows();
  return step;
}

absl::StatusOr<pkv_hits> read_hits(const pkv_hits* hits) {
  return pkv::read_struct(hits, pkv_hits{}, "pkv_hits");
}

}  // namespace

pkv_status pkv_plan_desc_init(pkv_plan_desc* desc, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(desc);
    return pkv::init_struct(desc, struct_size, default_desc(), "pkv_plan_desc");
  });
}

pkv_status pkv_plan_create(const pkv_index* index, const pkv_config* config,
                           const pkv_plan_desc* desc, pkv_plan** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(index);
    PKV_REQUIRE(config);
    PKV_REQUIRE(desc);
    PKV_ASSIGN_OR_RETURN(const pkv_plan_desc given,
                         pkv::read_struct(desc, default_desc(), "pkv_plan_desc"));
    auto plan = std::make_unique<pkv_plan>();
    PKV_ASSIGN_OR_RETURN(plan->plan, pkv::Plan::create(index->index, config->config, given));
    *out = plan.release();
    return absl::OkStatus();
  });
}

void pkv_plan_destroy(pkv_plan* plan) { delete plan; }

pkv_status pkv_plan_scratch_bytes(const pkv_plan* plan, int64_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = 0;
    PKV_REQUIRE(plan);
    *out = plan->plan->scratch_bytes();
    return absl::OkStatus();
  });
}

pkv_status pkv_plan_candidates(const pkv_plan* plan, int64_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = 0;
    PKV_REQUIRE(plan);
    *out = plan->plan->candidates();
    return absl::OkStatus();
  });
}

pkv_status pkv_plan_describe(const pkv_plan* plan, const char** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(plan);
    *out = plan->texts.keep(plan->plan->describe());
    return absl::OkStatus();
  });
}

pkv_status pkv_hits_init(pkv_hits* hits, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(hits);
    return pkv::init_struct(hits, struct_size, {}, "pkv_hits");
  });
}

pkv_status pkv_retrieve(const pkv_plan* plan, pkv_stream* stream, const pkv_tensor* query,
                        void* scratch, const pkv_hits* hits) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(plan);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(query);
    PKV_REQUIRE(hits);
    PKV_ASSIGN_OR_RETURN(const pkv_hits given, read_hits(hits));
    return pkv::retrieve(*plan->plan, stream->stream, *query, scratch, given);
  });
}

pkv_status pkv_vote(const pkv_plan* plan, pkv_stream* stream, const pkv_tensor* query,
                    void* scratch, float* votes, int64_t stride) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(plan);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(query);
    PKV_REQUIRE(votes);
    return pkv::vote(*plan->plan, stream->stream, *query, scratch, votes, stride);
  });
}

pkv_status pkv_rerank(const pkv_plan* plan, pkv_stream* stream, const pkv_tensor* query,
                      void* scratch, const pkv_hits* hits) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(plan);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(query);
    PKV_REQUIRE(hits);
    PKV_ASSIGN_OR_RETURN(const pkv_hits given, read_hits(hits));
    return pkv::rerank(*plan->plan, stream->stream, *query, scratch, given);
  });
}

pkv_status pkv_rows_init(pkv_rows* rows, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(rows);
    return pkv::init_struct(rows, struct_size, {}, "pkv_rows");
  });
}

pkv_status pkv_fetch(const pkv_plan* plan, pkv_stream* stream, const pkv_rows* source,
                     const pkv_hits* hits, const pkv_rows* rows) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(plan);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(source);
    PKV_REQUIRE(hits);
    PKV_REQUIRE(rows);
    PKV_ASSIGN_OR_RETURN(const pkv_rows from, pkv::read_struct(source, empty_rows(), "source"));
    PKV_ASSIGN_OR_RETURN(const pkv_rows to, pkv::read_struct(rows, empty_rows(), "rows"));
    PKV_ASSIGN_OR_RETURN(const pkv_hits given, read_hits(hits));
    return pkv::fetch(*plan->plan, stream->stream, from, given, to);
  });
}

pkv_status pkv_attention_init(pkv_attention* attention, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(attention);
    return pkv::init_struct(attention, struct_size, default_attention(), "pkv_attention");
  });
}

pkv_status pkv_attend(const pkv_plan* plan, pkv_stream* stream, const pkv_attention* attention) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(plan);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(attention);
    PKV_ASSIGN_OR_RETURN(const pkv_attention given,
                         pkv::read_struct(attention, default_attention(), "pkv_attention"));
    std::optional<pkv_hits> hits;
    if (given.hits != nullptr) {
      PKV_ASSIGN_OR_RETURN(hits, read_hits(given.hits));
    }
    return pkv::attend(*plan->plan, stream->stream, given, hits ? &*hits : nullptr);
  });
}

pkv_status pkv_step_init(pkv_step* step, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(step);
    return pkv::init_struct(step, struct_size, default_step(), "pkv_step");
  });
}

pkv_status pkv_step_run(const pkv_plan* plan, pkv_stream* stream, const pkv_step* step) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(plan);
    PKV_REQUIRE(stream);
    PKV_REQUIRE(step);
    PKV_ASSIGN_OR_RETURN(const pkv_step given, pkv::read_struct(step, default_step(), "pkv_step"));
    pkv_hits hits{};
    if (given.hits != nullptr) {
      PKV_ASSIGN_OR_RETURN(hits, read_hits(given.hits));
    }
    pkv::RowCache* rows = given.row_cache != nullptr ? given.row_cache->cache.get() : nullptr;
    return pkv::step(*plan->plan, stream->stream, given, rows, hits);
  });
}
