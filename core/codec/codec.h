// Codec: fitted parameters on a device, with the geometry and the options they belong to.
// docs/algorithm.md, section 2. Immutable, so a const Codec may be used by any number of threads.
// Not here: how sums become parameters (fit.h), what follows from them (params.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/codec/params.h"
#include "core/plan/config.h"
#include "core/runtime/buffer.h"
#include "core/runtime/device.h"
#include "core/runtime/stream.h"
#include "core/runtime/temporaries.h"
#include "pariskv/pariskv_backend.h"

namespace pkv {

// The numbers of a codec in one piece, as a device wants them.
class PackedParams {
 public:
  // INVALID_ARGUMENT: too many.
  static absl::StatusOr<PackedParams> create(const CodecParams& numbers);
  const std::vector<std::byte>& bytes() const { return bytes_; }
  // Once they lie at `base`, aligned as a buffer is. `geometry` stays the caller's.
  pkv_codec_params at(const std::byte* base, const pkv_geometry& geometry) const;

 private:
  std::vector<std::byte> bytes_;
  std::array<int64_t, 8> offsets_{};  // -1: none
};

class Codec {
 public:
  // Copies the numbers to the device and waits until they are there.
  static absl::StatusOr<std::shared_ptr<const Codec>> create(std::shared_ptr<const Device> device,
                                                             CodecParams numbers,
                                                             const CodecOptions& options);

  // Fits on tensors that the device can read (2.2):
  //   keys     [h, n, d]
  //   queries  [hq, m, d]; NULL: balance 1
  //   values   [h, n, dv]; NULL: value centre 0, refused with a sketch unless v_source = k_prefix
  static absl::StatusOr<std::shared_ptr<const Codec>> fit_sync(const Stream& stream,
                                                               const Config& config,
                                                               const pkv_tensor& keys,
                                                               const pkv_tensor* queries,
                                                               const pkv_tensor* values);
  // The numbers alone. `memory` is the stream's.
  static absl::StatusOr<CodecParams> fit_numbers_sync(const Stream& stream, Temporaries& memory,
                                                      const Config& config, const pkv_tensor& keys,
                                                      const pkv_tensor* queries,
                                                      const pkv_tensor* values);

  const std::shared_ptr<const Device>& device() const { return device_; }
  const pkv_geometry& geometry() const { return numbers_.geometry(); }
  const CodecOptions& options() const { return options_; }
  const CodecParams& numbers() const { return numbers_; }  // host
  // Device pointers, valid as long as the codec.
  pkv_codec_params params() const { return params_; }

 private:
  Codec(std::shared_ptr<const Device> device, CodecParams numbers, const CodecOptions& options)
      : device_(std::move(device)), numbers_(std::move(numbers)), options_(options) {}
  absl::Status upload();

  std::shared_ptr<const Device> device_;
  CodecParams numbers_;
  CodecOptions options_;
  Buffer buffer_;
  pkv_codec_params params_{};
};

// The view of the first `value_dim` coordinates of keys, which are the values with v_source =
// k_prefix. Strides are those of the keys, so they must be given. `shape` [ndim] is written and
// must live as long as the view.
pkv_tensor prefix_view(const pkv_tensor& keys, int32_t value_dim, int64_t* shape);

}  // namespace pkv
