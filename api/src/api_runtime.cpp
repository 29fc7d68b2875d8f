// Exported functions of section "Runtime".
#include <utility>

#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/runtime/describe.h"
#include "core/runtime/registry.h"
#include "pariskv/pariskv.h"

namespace {

pkv_runtime_options default_options() {
  pkv_runtime_options options{};
  options.log_level = static_cast<int32_t>(pkv::LogLevel::kInfo);
  return options;
}

}  // namespace

pkv_status pkv_runtime_options_init(pkv_runtime_options* options, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(options);
    return pkv::init_struct(options, struct_size, default_options(), "pkv_runtime_options");
  });
}

pkv_status pkv_runtime_create(const pkv_runtime_options* options, pkv_runtime** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    pkv_runtime_options given = default_options();
    if (options != nullptr) {
      PKV_ASSIGN_OR_RETURN(given, pkv::read_struct(options, given, "pkv_runtime_options"));
    }
    if (given.log_level < 0 || given.log_level > 3) {
      return absl::InvalidArgumentError(
          pkv::str_cat("log_level=", given.log_level, ", accepted: 0..3"));
    }
    pkv::RegistryOptions registry_options;
    registry_options.log = given.log;
    registry_options.log_user = given.log_user;
    registry_options.log_level = given.log_level;
    if (given.backend_path != nullptr) registry_options.backend_path = given.backend_path;

    auto runtime = std::make_unique<pkv_runtime>();
    PKV_ASSIGN_OR_RETURN(runtime->registry, pkv::Registry::create(registry_options));
    *out = runtime.release();
    return absl::OkStatus();
  });
}

void pkv_runtime_destroy(pkv_runtime* runtime) { pkv::destroy(runtime); }

pkv_status pkv_runtime_describe(const pkv_runtime* runtime, const char** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(runtime);
    *out = runtime->texts.keep(pkv::describe_registry(*runtime->registry));
    return absl::OkStatus();
  });
}

pkv_status pkv_backend_info_init(pkv_backend_info* info, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(info);
    pkv_backend_info defaults{};
    defaults.name = defaults.version = defaults.path = defaults.reason = "";
    return pkv::init_struct(info, struct_size, defaults, "pkv_backend_info");
  });
}

pkv_status pkv_runtime_backend_count(const pkv_runtime* runtime, int32_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = 0;
    PKV_REQUIRE(runtime);
    *out = runtime->registry->size();
    return absl::OkStatus();
  });
}

pkv_status pkv_runtime_backend_info(const pkv_runtime* runtime, int32_t index,
                                    pkv_backend_info* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    PKV_REQUIRE(runtime);
    if (index < 0 || index >= runtime->registry->size()) {
      return absl::OutOfRangeError(
          pkv::str_cat("index=", index, ", accepted: 0..", runtime->registry->size() - 1));
    }
    const pkv::Backend& backend = runtime->registry->at(index);
    pkv_backend_info info{};
    info.score = backend.score;
    info.is_usable = backend.is_usable ? 1 : 0;
    info.is_builtin = backend.is_builtin ? 1 : 0;
    info.device_count = backend.device_count;
    info.name = backend.name.c_str();
    info.version = backend.version.c_str();
    info.path = backend.path.c_str();
    info.reason = backend.reason.c_str();
    return pkv::write_struct(out, info, "pkv_backend_info");
  });
}

pkv_status pkv_runtime_backend_load(pkv_runtime* runtime, const char* path, int32_t* out_index) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out_index);
    *out_index = -1;
    PKV_REQUIRE(runtime);
    PKV_REQUIRE(path);
    PKV_ASSIGN_OR_RETURN(*out_index, runtime->registry->load(path));
    return absl::OkStatus();
  });
}
