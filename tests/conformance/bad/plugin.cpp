// A backend that misbehaves as the environment variable PKV_BAD_PLUGIN says; without it, cpu_ref's
// table. What a suite must survive: runner_test.py.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "pariskv/pariskv_backend.h"

extern "C" const pkv_backend* pkv_cpu_ref_query(uint32_t host_max_abi, const pkv_host* host);
extern "C" PKV_API const pkv_backend* pkv_backend_query(uint32_t host_max_abi,
                                                        const pkv_host* host);

namespace {

const pkv_backend* sound = nullptr;

bool is(const char* fault) {
  const char* wanted = std::getenv("PKV_BAD_PLUGIN");
  return wanted != nullptr && std::string(wanted) == fault;
}

[[noreturn]] void crash() {
  std::raise(SIGSEGV);
  std::abort();
}
[[noreturn]] void hang() {
  for (;;) pause();
}

struct OnLoad {
  OnLoad() {
    if (is("load_crashes")) crash();
    if (is("load_hangs")) hang();
    if (is("load_exits")) std::exit(0);
  }
  ~OnLoad() {
    if (is("end_crashes")) crash();
    if (is("end_hangs")) hang();
  }
} on_load;

// Only with some head_dims, so that other cases of the stage have a result.
pkv_status run_vote(pkv_backend_device* device, pkv_backend_stream* stream,
                    const pkv_vote_args* args, void* scratch) {
  const int32_t d = args->codec.geometry->head_dim;
  if (d == 192 || d == 256) {
    if (is("vote_crashes")) crash();
    if (is("vote_aborts")) std::abort();
    if (is("vote_hangs")) hang();
    if (is("vote_exits")) std::exit(0);
    if (is("vote_throws")) throw std::runtime_error("thrown over the table");
    if (is("vote_leaves_a_process") && fork() == 0) {
      sleep(20);
      _exit(0);
    }
    if (is("vote_leaves_a_process")) crash();
  }
  if (is("vote_prints")) std::printf("{\"cases\": []}\n"), std::fflush(stdout);
  if (is("vote_odd_status")) return 77;
  return sound->vote.run(device, stream, args, scratch);
}

pkv_status vote_scratch(pkv_backend_device* device, const pkv_vote_args* args, int64_t* out) {
  const pkv_status status = sound->vote.scratch_bytes(device, args, out);
  if (is("scratch_negative")) *out = -1;
  if (is("scratch_huge")) *out = INT64_MAX - 1;
  if (is("scratch_short")) *out -= 64;
  return status;
}

pkv_status row_bytes(pkv_backend_device* device, const pkv_geometry* geometry, int64_t capacity,
                     int64_t* out) {
  const pkv_status status = sound->store_row_bytes(device, geometry, capacity, out);
  if (is("rows_negative")) *out = -256;
  if (is("rows_uneven")) *out += 8;
  if (is("rows_huge")) *out = INT64_MAX / 256 * 256;
  if (is("rows_empty")) *out = 0;
  return status;
}

// Memory that is not what was asked for.
pkv_status odd_alloc(pkv_backend_device* device, int32_t kind, int64_t bytes, void** out) {
  if (is("memory_misaligned")) {
    const pkv_status status = sound->memory_alloc(device, kind, bytes + 256, out);
    *out = static_cast<char*>(*out) + 16;
    return status;
  }
  *out = nullptr;
  return PKV_OK;
}

void odd_free(pkv_backend_device* device, int32_t kind, void* data, int64_t bytes) {
  sound->memory_free(device, kind, static_cast<char*>(data) - 16, bytes + 256);
}

}  // namespace

const pkv_backend* pkv_backend_query(uint32_t host_max_abi, const pkv_host* host) {
  if (is("query_crashes")) crash();
  if (is("query_hangs")) hang();
  if (is("query_is_silent")) return nullptr;
  sound = pkv_cpu_ref_query(host_max_abi, host);
  static pkv_backend table;
  table = *sound;
  table.name = "bad";
  if (is("table_is_short")) table.struct_size = 16;
  if (is("table_has_no_vote")) table.vote = {};
  if (is("memory_misaligned") || is("memory_none")) table.memory_alloc = odd_alloc;
  if (is("memory_misaligned")) table.memory_free = odd_free;
  table.vote.scratch_bytes = vote_scratch;
  table.store_row_bytes = row_bytes;
  table.vote.run = run_vote;
  return &table;
}
