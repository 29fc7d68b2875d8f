// eval's method that is the library itself, through the C API as an engine would use it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/engine.h"
#include "tools/handles.h"
#include "tools/method.h"
#include "tools/step.h"

namespace pkv::cli {

class Retrieval : public Method {
 public:
  static absl::StatusOr<std::unique_ptr<Retrieval>> create(const Engine& engine, const Trace& trace,
                                                           const std::string& profile,
                                                           const OptionValues& options,
                                                           const Setting& setting);

  absl::StatusOr<Answer> answer(int64_t query, const Exact& exact) override;
  double bytes_per_key() const override { return bytes_per_key_; }

  const pkv_codec* codec() const { return codec_.get(); }
  const pkv_index* index() const { return index_.get(); }
  const pkv_config* config() const { return config_.get(); }
  int64_t indexed() const { return indexed_; }  // tokens of the zone so far

 private:
  Retrieval(const Engine& engine, const Trace& trace, const Setting& setting)
      : engine_(engine), trace_(trace), setting_(setting) {}

  absl::Status create_index();
  absl::Status create_step();
  // Appends what the zone has gained since the last query.
  absl::Status grow(const Regions& regions);
  // A whole step; waits.
  absl::Status run(int64_t query, const Regions& regions);

  const Engine& engine_;
  const Trace& trace_;
  Setting setting_;
  Config config_;
  Codec codec_;
  Index index_;
  Plan plan_;
  std::unique_ptr<Hits> hits_;
  std::unique_ptr<DeviceArray<float>> output_;
  int64_t k_ = 0;
  int64_t indexed_ = 0;
  double bytes_per_key_ = 0;
};

}  // namespace pkv::cli
