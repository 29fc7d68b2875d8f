// The table that a plug-in hands over, and what its discovery slots say: any version, size, name,
// missing slot, status, report and device description. A table that does not fit is refused before
// any slot is called; what is described is JSON whatever the texts are.
#include <cstddef>
#include <memory>

#include "core/format/records.h"
#include "core/runtime/describe.h"
#include "core/runtime/plugin.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz.h"

namespace pkv::fuzz {
namespace {

// What the slots answer, and that none is called too early.
struct Behaviour {
  bool may_be_called = false;
  pkv_status status = PKV_OK;
  int32_t count = 0;
  bool gives_handle = false;
  bool is_open = false;
  std::string report;
  pkv_backend_device_info info{};
};
Behaviour* behaviour = nullptr;
int device = 0;

void say(const pkv_host* host) {
  require(behaviour->may_be_called, "no slot is called before the table is checked");
  if (!behaviour->report.empty()) host->report(host, behaviour->report.c_str());
}

pkv_status device_count(const pkv_host* host, int32_t* out) {
  say(host);
  *out = behaviour->count;
  return PKV_OK;
}

pkv_status device_info(const pkv_host* host, int32_t /*ordinal*/, pkv_backend_device_info* out) {
  say(host);
  *out = behaviour->info;
  return behaviour->status;
}

pkv_status device_open(const pkv_host* host, int32_t /*ordinal*/, pkv_backend_device** out) {
  say(host);
  if (!behaviour->gives_handle) return behaviour->status;
  behaviour->is_open = true;
  *out = reinterpret_cast<pkv_backend_device*>(&device);
  return PKV_OK;
}

void device_close(pkv_backend_device* closed) {
  require(closed == reinterpret_cast<pkv_backend_device*>(&device) && behaviour->is_open,
          "what was opened is closed, once");
  behaviour->is_open = false;
}

// Every other slot: one that is not there, or refuses.
template <class Function>
struct Refusing;
template <class... Arguments>
struct Refusing<pkv_status (*)(Arguments...)> {
  static pkv_status call(Arguments... /*any*/) { return PKV_UNIMPLEMENTED; }
};
template <class... Arguments>
struct Refusing<void (*)(Arguments...)> {
  static void call(Arguments... /*any*/) {}
};

// Takes a byte for each slot: 0 leaves it out.
class Slots {
 public:
  explicit Slots(Bytes& bytes) : bytes_(bytes) {}
  template <class... Functions>
  bool fill(Functions&... slots) {
    const std::size_t before = missing_;
    (put(slots, &Refusing<Functions>::call), ...);
    return missing_ == before;
  }
  template <class... Stages>
  bool fill_stages(Stages&... stages) {
    const std::size_t before = missing_;
    (fill(stages.supports, stages.scratch_bytes, stages.run), ...);
    return missing_ == before;
  }
  template <class Function>
  bool put(Function& slot, Function function) {
    const bool is_there = bytes_.byte() != 0;
    slot = is_there ? function : nullptr;
    missing_ += is_there ? 0 : 1;
    filled_ += is_there ? 1 : 0;
    return is_there;
  }
  // All or none of those put since the last call.
  bool is_group() {
    const bool is_one = missing_ == 0 || filled_ == 0;
    missing_ = filled_ = 0;
    return is_one;
  }

 private:
  Bytes& bytes_;
  std::size_t missing_ = 0;
  std::size_t filled_ = 0;
};

// Whether every slot that is needed is there, and optional ones in whole groups.
bool fill_table(Bytes& bytes, pkv_backend& table) {
  Slots slots(bytes);
  bool is_whole = slots.put(table.device_count, &device_count);
  is_whole &= slots.put(table.device_info, &device_info);
  is_whole &= slots.put(table.device_open, &device_open);
  is_whole &= slots.put(table.device_close, &device_close);
  is_whole &=
      slots.fill(table.memory_alloc, table.memory_free, table.memory_copy, table.memory_fill,
                 table.stream_create, table.stream_wrap, table.stream_destroy, table.stream_sync,
                 table.event_create, table.event_destroy, table.event_record, table.event_wait,
                 table.store_row_bytes, table.store_import, table.store_export);
  is_whole &= slots.fill_stages(table.fit, table.encode, table.vote, table.select, table.rerank,
                                table.fetch, table.attend);
  slots.is_group();
  slots.fill_stages(table.step);
  is_whole &= slots.is_group();
  slots.fill(table.memory_words, table.stream_capturing, table.place, table.advance);
  is_whole &= slots.is_group();
  slots.fill(table.device_set, table.device_parallel, table.merge);
  table.has_row_cache = bytes.number<int32_t>();
  return is_whole;
}

const pkv_backend* offered = nullptr;
const pkv_backend* query(uint32_t /*version*/, const pkv_host* host) {
  require(host->struct_size == sizeof(pkv_host) && host->abi_major == PKV_BACKEND_ABI_MAJOR,
          "the host says who it is");
  if (!behaviour->report.empty()) host->report(host, behaviour->report.c_str());
  return offered;
}

void require_json(const std::string& text) {
  require(nlohmann::json::accept(text), "a description is JSON in UTF-8");
}

}  // namespace

std::vector<std::string> seeds() {
  std::vector<std::string> all;
  pkv_backend table{};
  table.struct_size = sizeof table;
  table.abi_major = PKV_BACKEND_ABI_MAJOR;
  table.abi_minor = PKV_BACKEND_ABI_MINOR;
  table.build_flags = build_flags();
  table.format_version = static_cast<uint32_t>(format::kFormatVersion);
  const auto with = [](const pkv_backend& head, const std::string& rest) {
    return std::string(reinterpret_cast<const char*>(&head), offsetof(pkv_backend, name)) + rest;
  };
  const std::string slots(50, '\x01');  // and has_row_cache, in part
  const std::string behaves("\0\0\0\0\x01\0\0\0\x01report\n", 16);
  all.push_back(with(table, std::string("good\n1.0\n") + "about\n" + slots + behaves));
  all.push_back(with(table, "fast-1\n1.0\nabout\n" + slots + behaves));
  all.push_back(
      with(table, "fast\n1\n\n" + std::string(45, '\x01') + std::string(11, '\0') + behaves));
  table.abi_major = 2;
  all.push_back(with(table, "other\n1\n\n" + slots));
  table.abi_major = PKV_BACKEND_ABI_MAJOR;
  table.build_flags ^= PKV_BUILD_TSAN;
  all.push_back(with(table, "other\n1\n\n" + slots));
  return all;
}

void run(Input input) {
  Bytes bytes(input);
  Behaviour own;
  behaviour = &own;
  // In a heap block as long as the table, so that what is read behind it is seen.
  const auto table = std::make_unique<pkv_backend>();
  table->struct_size = bytes.number<uint32_t>();
  table->abi_major = bytes.number<uint32_t>();
  table->abi_minor = bytes.number<uint32_t>();
  table->build_flags = bytes.number<uint32_t>();
  table->format_version = bytes.number<uint32_t>();
  table->score = bytes.number<int32_t>();
  const std::string name = bytes.text('\n'), version = bytes.text('\n'), about = bytes.text('\n');
  table->name = name == "NULL" ? nullptr : name.c_str();
  table->version = version == "NULL" ? nullptr : version.c_str();
  table->about = about == "NULL" ? nullptr : about.c_str();
  const bool is_whole = fill_table(bytes, *table);
  own.count = bytes.number<int32_t>();
  own.gives_handle = bytes.byte() % 2 == 1;
  own.report = bytes.text('\n');
  own.status = bytes.number<int32_t>();
  own.info = bytes.number<pkv_backend_device_info>();
  const auto ordinal = bytes.number<int32_t>();
  const bool offers = bytes.byte() % 8 != 7;
  offered = offers ? table.get() : nullptr;

  static const std::shared_ptr<const Host>* const host =
      new std::shared_ptr<const Host>(Host::create(Log(nullptr, nullptr, 0)));
  const auto asked = query_backend(query, "fuzzed", **host);
  const bool has_version =
      table->abi_major == PKV_BACKEND_ABI_MAJOR && table->struct_size >= sizeof(pkv_backend);
  require(asked.ok() == (offers && has_version), "a table of another interface is refused");
  absl::Status status = asked.status();
  if (status.ok()) status = check_table(**asked, "fuzzed");
  if (!status.ok()) {
    require_text({status.message().data(), status.message().size()});
    return;
  }
  require(is_whole && table->name != nullptr && !name.empty() && name != "auto" &&
              table->format_version == static_cast<uint32_t>(format::kFormatVersion),
          "a table that is taken has a name and every slot");

  own.may_be_called = true;
  {
    const auto opened = Device::open(**asked, *host, ordinal);
    if (!opened.ok()) {
      require_text({opened.status().message().data(), opened.status().message().size()});
    } else {
      require(ordinal >= 0 && ordinal < own.count && own.gives_handle,
              "a device that is there is opened");
      require_json(describe_device(**opened));
    }
  }
  require(!own.is_open, "a device is closed with its last user");
}

}  // namespace pkv::fuzz
