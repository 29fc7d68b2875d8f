// Exported functions of section "Configuration".
#include <utility>

#include "api/src/guard.h"
#include "api/src/handles.h"
#include "api/src/struct_size.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/plan/config.h"
#include "pariskv/pariskv.h"

pkv_status pkv_config_create(const char* profile, pkv_config** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(profile);
    PKV_ASSIGN_OR_RETURN(pkv::Config config, pkv::Config::create(profile));
    *out = new pkv_config{std::move(config)};
    return absl::OkStatus();
  });
}

void pkv_config_destroy(pkv_config* config) { delete config; }

pkv_status pkv_config_set(pkv_config* config, const char* name, const char* value) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(config);
    PKV_REQUIRE(name);
    PKV_REQUIRE(value);
    return config->config.set(name, value);
  });
}

pkv_status pkv_config_get(const pkv_config* config, const char* name, const char** out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = nullptr;
    PKV_REQUIRE(config);
    PKV_REQUIRE(name);
    PKV_ASSIGN_OR_RETURN(const std::string* value, config->config.get(name));
    *out = value->c_str();
    return absl::OkStatus();
  });
}

pkv_status pkv_option_info_init(pkv_option_info* info, size_t struct_size) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(info);
    return pkv::init_struct(info, struct_size, {}, "pkv_option_info");
  });
}

pkv_status pkv_config_option_count(int32_t* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    *out = static_cast<int32_t>(pkv::kOptionCount);
    return absl::OkStatus();
  });
}

pkv_status pkv_config_option_info(int32_t index, pkv_option_info* out) {
  return pkv::guard(__func__, [&]() -> absl::Status {
    PKV_REQUIRE(out);
    if (index < 0 || index >= static_cast<int32_t>(pkv::kOptionCount)) {
      return absl::OutOfRangeError(
          pkv::str_cat("index=", index, ", accepted: 0..", pkv::kOptionCount - 1));
    }
    const pkv::OptionInfo& option = pkv::option_table()[static_cast<size_t>(index)];
    pkv_option_info info{};
    info.name = option.name;
    info.accepts = option.accepts;
    info.default_value = option.default_value;
    info.paper_value = option.paper_value;
    info.about = option.about;
    return pkv::write_struct(out, info, "pkv_option_info");
  });
}
