#include "core/index/index.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "core/base/checked.h"
#include "core/base/dtype.h"
#include "core/base/status.h"
#include "core/base/tensor.h"
#include "core/base/text.h"
#include "core/format/records.h"
#include "core/index/record_planes.h"
#include "core/pipeline/checks.h"

namespace pkv {
namespace {

constexpr int64_t kExportBytes = 1 << 20;  // of records, staged on the device at a time

}  // namespace

struct Index::AppendInput {
  TensorView keys;                   // [h, t, d]
  std::optional<TensorView> values;  // [h, t, dv]
};

absl::StatusOr<std::shared_ptr<Index>> Index::create(std::shared_ptr<const Device> device,
                                                     std::shared_ptr<const Codec> codec,
                                                     int32_t sequences, int64_t capacity) {
  if (codec->device() != device) {
    return absl::InvalidArgumentError(
        "codec belongs to another device, accepted: one made with "
        "the device of the index");
  }
  PKV_ASSIGN_OR_RETURN(const IndexSizes sizes,
                       IndexSizes::create(*device, *codec, sequences, capacity));
  std::shared_ptr<Index> index(new Index(std::move(device), std::move(codec), sizes));
  index->state_ = std::make_unique<SequenceState[]>(static_cast<std::size_t>(sequences));
  PKV_ASSIGN_OR_RETURN(index->content_, index->create_content());
  const auto buffer = [&index](int64_t bytes) {
    return Buffer::create(index->device_, PKV_MEMORY_DEVICE, bytes);
  };
  PKV_ASSIGN_OR_RETURN(index->constants_, buffer(sizes.constant_bytes));
  PKV_ASSIGN_OR_RETURN(index->workspace_, buffer(sizes.workspace_bytes));
  PKV_ASSIGN_OR_RETURN(index->appended_, Event::create(index->device_));
  PKV_ASSIGN_OR_RETURN(const Stream stream, Stream::create(index->device_));
  PKV_RETURN_IF_ERROR(clear_content(stream, index->content_));
  PKV_RETURN_IF_ERROR(index->create_constants(stream));
  return index;
}

absl::StatusOr<Index::Content> Index::create_content() const {
  const auto buffer = [this](int64_t bytes) {
    return Buffer::create(device_, PKV_MEMORY_DEVICE, bytes);
  };
  Content content;
  PKV_ASSIGN_OR_RETURN(content.records, buffer(sizes_.record_bytes));
  PKV_ASSIGN_OR_RETURN(content.occupancy, buffer(sizes_.occupancy_bytes));
  PKV_ASSIGN_OR_RETURN(content.value_sums, buffer(sizes_.value_sum_bytes));
  PKV_ASSIGN_OR_RETURN(content.good_counts, buffer(sizes_.good_count_bytes));
  PKV_ASSIGN_OR_RETURN(content.lengths, buffer(sizes_.length_bytes));
  return content;
}

// Lengths and sums start at 0. Records past a length are never read, so they stay as they are.
absl::Status Index::clear_content(const Stream& stream, const Content& content) {
  for (const Buffer* numbers :
       {&content.occupancy, &content.value_sums, &content.good_counts, &content.lengths}) {
    PKV_RETURN_IF_ERROR(stream.fill(numbers->data(), 0, numbers->bytes()));
  }
  return absl::OkStatus();
}

absl::Status Index::create_constants(const Stream& stream) {
  std::vector<int32_t> sequences(static_cast<std::size_t>(sizes_.sequences));
  std::vector<int64_t> counts(static_cast<std::size_t>(sizes_.chunk_tokens) + 1);
  std::iota(sequences.begin(), sequences.end(), 0);
  std::iota(counts.begin(), counts.end(), int64_t{0});
  absl::Status copied = stream.copy(constants_.data(), sequences.data(),
                                    static_cast<int64_t>(sequences.size() * sizeof(int32_t)));
  if (copied.ok()) {
    copied = stream.copy(constants_.as<std::byte>() + sizes_.sequence_bytes, counts.data(),
                         static_cast<int64_t>(counts.size() * sizeof(int64_t)));
  }
  const absl::Status passed = stream.sync();
  return copied.ok() ? passed : copied;
}

pkv_store Index::store() const {
  pkv_store store{};
  store.base = content_.records.data();
  store.row_bytes = sizes_.row_bytes;
  store.capacity = sizes_.capacity;
  return store;
}

absl::Status Index::check_sequence(int64_t sequence) const {
  return check_index("sequence", sequence, 0, int64_t{sizes_.sequences} - 1);
}

absl::Status Index::check_stream(const Stream& stream) const {
  return stream.check_device(device_, "of the index");
}

absl::Status Index::check_whole() const {
  if (half_sequences_.load() == 0) return absl::OkStatus();
  for (int32_t sequence = 0; sequence < sizes_.sequences; ++sequence) {
    if (!state_[sequence].is_half.load()) continue;
    return absl::UnavailableError(
        str_cat("sequence ", sequence,
                " is half changed: the device failed in a call, and again when it "
                "was to be taken back; reset the sequence, or restore the index"));
  }
  return absl::OkStatus();
}

void Index::set_half(std::size_t sequence, bool is_half) noexcept {
  if (state_[sequence].is_half.exchange(is_half) != is_half) half_sequences_ += is_half ? 1 : -1;
}

absl::StatusOr<Index::AppendInput> Index::check_append(int32_t sequence, const pkv_tensor& keys,
                                                       const pkv_tensor* values) const {
  const pkv_geometry& g = geometry();
  PKV_RETURN_IF_ERROR(check_sequence(sequence));
  PKV_ASSIGN_OR_RETURN(
      TensorView key_view,
      check_tensor(*device_, "keys", keys,
                   {exactly("h", g.kv_heads), at_least("t", 0), exactly("d", g.head_dim)},
                   kFloatTypes));
  AppendInput input{key_view, std::nullopt};
  const int64_t tokens = key_view.extent(1);
  if (values != nullptr) {
    if (g.value_dim == 0) {
      return absl::InvalidArgumentError("values are given, accepted: NULL with v_source=none");
    }
    PKV_ASSIGN_OR_RETURN(input.values, check_tensor(*device_, "values", *values,
                                                    {exactly("h", g.kv_heads), exactly("t", tokens),
                                                     exactly("dv", g.value_dim)},
                                                    kFloatTypes));
  } else if (g.v_source == PKV_V_SOURCE_K_PREFIX) {
    const pkv_tensor whole = key_view.tensor();
    int64_t shape[3];
    const pkv_tensor prefix = prefix_view(whole, g.value_dim, shape);
    PKV_ASSIGN_OR_RETURN(input.values, check_tensor(*device_, "values", prefix,
                                                    {exactly("h", g.kv_heads), exactly("t", tokens),
                                                     exactly("dv", g.value_dim)},
                                                    kFloatTypes));
  } else if (g.sketch_bits != 0 || g.value_norm != 0) {
    return absl::InvalidArgumentError(
        str_cat("values=NULL, accepted: [h, t, dv], since the codec has ",
                g.sketch_bits != 0 ? "a value sketch" : "value norms"));
  }
  const int64_t room = sizes_.capacity - length(sequence);
  if (tokens > room) {
    return absl::ResourceExhaustedError(str_cat("sequence ", sequence, ": needs ", tokens,
                                                " tokens, has room for ", room, " (capacity ",
                                                sizes_.capacity, ", held ", length(sequence), ")"));
  }
  return input;
}

absl::Status Index::append(const Stream& stream, int32_t sequence, const pkv_tensor& keys,
                           const pkv_tensor* values, Mode mode) {
  PKV_RETURN_IF_ERROR(check_stream(stream));
  PKV_RETURN_IF_ERROR(check_whole());
  PKV_ASSIGN_OR_RETURN(const AppendInput input, check_append(sequence, keys, values));
  const bool is_sync = mode == Mode::kSync;
  const int64_t tokens = input.keys.extent(1);
  if (tokens == 0) return is_sync ? stream.sync() : absl::OkStatus();

  const int64_t begin = length(sequence);
  PKV_RETURN_IF_ERROR(begin_append(stream, sequence));
  absl::Status status;
  try {
    status = encode(stream, sequence, begin, input, is_sync && !codec_->options().isolate);
    if (status.ok()) status = mark_appended(stream);
    if (status.ok() && is_sync) status = stream.sync();
  } catch (...) {
    undo_append(stream, sequence);
    throw;
  }
  if (!status.ok()) {
    undo_append(stream, sequence);
    return status;
  }
  state_[sequence].length = begin + tokens;
  if (!input.values) state_[sequence].lacks_values = true;
  return absl::OkStatus();
}

absl::Status Index::mark_appended(const Stream& stream) {
  PKV_RETURN_IF_ERROR(appended_->record(stream));
  has_appended_ = true;
  return absl::OkStatus();
}

// Another stream may still be at work with the workspace. Then the sums are copied away, so that
// an append that fails halfway can put them back.
absl::Status Index::begin_append(const Stream& stream, int32_t sequence) {
  if (has_appended_) PKV_RETURN_IF_ERROR(appended_->wait(stream));
  for (const SumPart& part : sum_parts(sequence)) {
    PKV_RETURN_IF_ERROR(stream.copy(part.backup, part.data, part.bytes));
  }
  return absl::OkStatus();
}

// Only the sums and the length are taken back: records past the length do not count. Waits, so that
// the workspace is free. What fails here fails behind the error that is on its way to the caller.
void Index::undo_append(const Stream& stream, int32_t sequence) noexcept {
  bool is_undone = false;
  try {
    absl::Status status = write_length(stream, sequence, length(sequence));
    for (const SumPart& part : sum_parts(sequence)) {
      status.Update(stream.copy(part.data, part.backup, part.bytes));
    }
    status.Update(stream.sync());
    is_undone = status.ok();
  } catch (...) {  // no memory for the text of a failure
  }
  if (!is_undone) set_half(static_cast<std::size_t>(sequence), true);
}

std::array<Index::SumPart, 3> Index::sum_parts(int32_t sequence) const {
  std::array<SumPart, 3> parts{};
  std::byte* backup = workspace_.as<std::byte>() + sizes_.first_bad_bytes;
  std::size_t next = 0;
  for (const Buffer* sums : {&content_.occupancy, &content_.value_sums, &content_.good_counts}) {
    const int64_t bytes = sums->bytes() / sizes_.sequences;
    parts[next++] = {sums->as<std::byte>() + sequence * bytes, bytes, backup};
    backup += padded(bytes);
  }
  return parts;
}

absl::Status Index::encode(const Stream& stream, int32_t sequence, int64_t begin,
                           const AppendInput& input, bool refuses_bad) {
  const pkv_encode_slots& slots = device_->backend().encode;
  const int64_t tokens = input.keys.extent(1);
  const auto* counts =
      reinterpret_cast<const int64_t*>(constants_.as<std::byte>() + sizes_.sequence_bytes);
  std::byte* scratch = workspace_.as<std::byte>() + sizes_.first_bad_bytes + sizes_.backup_bytes;

  pkv_encode_args args{};
  args.struct_size = sizeof args;
  args.batch = 1;
  args.codec = codec_->params();
  args.sequences = identity() + sequence;
  args.starts = device_lengths() + sequence;  // grows with every chunk
  args.store = store();
  args.occupancy = content_.occupancy.as<int32_t>();
  args.value_sums = input.values ? content_.value_sums.as<double>() : nullptr;
  args.good_counts = content_.good_counts.as<int64_t>();
  args.first_bad = refuses_bad ? workspace_.as<int64_t>() : nullptr;
  for (int64_t done = 0; done < tokens;) {
    const int64_t count = std::min(sizes_.chunk_tokens, tokens - done);
    TokenChunk keys(input.keys, done, count);
    std::optional<TokenChunk> values;
    if (input.values) values.emplace(*input.values, done, count);
    PKV_RETURN_IF_ERROR(stage_.take(stream, keys, values ? &*values : nullptr));
    args.keys = keys.tensor();
    if (values) args.values = values->tensor();
    args.counts = counts + count;
    if (done == 0) PKV_RETURN_IF_ERROR(device_->call("encode", slots.supports, &args));
    PKV_RETURN_IF_ERROR(device_->call("encode", slots.run, stream.handle(), &args, scratch));
    if (refuses_bad) PKV_RETURN_IF_ERROR(check_first_bad(stream, sequence));
    done += count;
    PKV_RETURN_IF_ERROR(write_length(stream, sequence, begin + done));
  }
  return absl::OkStatus();
}

absl::Status Index::check_first_bad(const Stream& stream, int32_t sequence) const {
  PKV_ASSIGN_OR_RETURN(const auto positions,
                       read_back(stream, workspace_.as<int64_t>(), geometry().kv_heads));
  int64_t first = -1;
  std::size_t head = 0;
  for (std::size_t i = 0; i < positions.size(); ++i) {
    if (positions[i] < 0 || (first >= 0 && positions[i] >= first)) continue;
    first = positions[i];
    head = i;
  }
  if (first < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat("key of sequence ", sequence, ", KV head ", head, ", position ", first,
              " is not finite, accepted: keys and values whose squares have a finite sum "
              "(or nonfinite=isolate)"));
}

// By fills alone, which carry their value with them: a host variable that a copy reads later could
// have changed by then.
absl::Status Index::write_length(const Stream& stream, int32_t sequence, int64_t length) const {
  auto* target = reinterpret_cast<uint8_t*>(content_.lengths.as<int64_t>() + sequence);
  std::array<uint8_t, sizeof(int64_t)> bytes{};
  std::memcpy(bytes.data(), &length, sizeof length);
  PKV_RETURN_IF_ERROR(stream.fill(target, 0, sizeof length));
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] != 0) PKV_RETURN_IF_ERROR(stream.fill(target + i, bytes[i], 1));
  }
  return absl::OkStatus();
}

absl::Status Index::reset(const Stream& stream, int32_t sequence) {
  PKV_RETURN_IF_ERROR(check_stream(stream));
  PKV_RETURN_IF_ERROR(check_sequence(sequence));
  const absl::Status status = clear_sequence(stream, sequence);
  set_half(static_cast<std::size_t>(sequence), !status.ok());
  PKV_RETURN_IF_ERROR(status);
  state_[sequence].length = 0;
  state_[sequence].lacks_values = false;
  ++state_[sequence].generation;
  return absl::OkStatus();
}

absl::Status Index::clear_sequence(const Stream& stream, int32_t sequence) const {
  for (const SumPart& part : sum_parts(sequence)) {
    PKV_RETURN_IF_ERROR(stream.fill(part.data, 0, part.bytes));
  }
  return write_length(stream, sequence, 0);
}

absl::StatusOr<pkv_index_stats> Index::stats_sync(const Stream& stream) const {
  PKV_RETURN_IF_ERROR(check_stream(stream));
  PKV_RETURN_IF_ERROR(check_whole());
  PKV_ASSIGN_OR_RETURN(const auto good, read_back(stream, good_counts(), sizes_.rows));
  pkv_index_stats stats{};
  stats.struct_size = sizeof stats;
  stats.sequences = sizes_.sequences;
  stats.capacity = sizes_.capacity;
  for (int32_t sequence = 0; sequence < sizes_.sequences; ++sequence) {
    stats.tokens += length(sequence);
    stats.bad_keys += length(sequence) * geometry().kv_heads;
  }
  for (const int64_t count : good) stats.bad_keys -= count;
  stats.device_bytes = sizes_.total_bytes + stage_.bytes();
  stats.bytes_per_key = format::bytes_per_key(geometry());
  return stats;
}

absl::Status Index::export_sync(const Stream& stream, int32_t sequence, int32_t kv_head,
                                int64_t begin, int64_t count, const pkv_records& out) const {
  PKV_RETURN_IF_ERROR(check_stream(stream));
  PKV_RETURN_IF_ERROR(check_whole());
  PKV_RETURN_IF_ERROR(check_sequence(sequence));
  PKV_RETURN_IF_ERROR(check_index("kv_head", kv_head, 0, int64_t{geometry().kv_heads} - 1));
  PKV_RETURN_IF_ERROR(check_index("begin", begin, 0, length(sequence)));
  PKV_RETURN_IF_ERROR(check_index("count", count, 0, length(sequence) - begin));
  PKV_RETURN_IF_ERROR(check_planes(geometry(), out, count));
  const int64_t piece = std::max<int64_t>(1, kExportBytes / format::record_bytes(geometry(), 1));
  PKV_ASSIGN_OR_RETURN(const StagedRecords staged,
                       StagedRecords::create(device_, geometry(), std::min(piece, count)));
  const int64_t row = int64_t{sequence} * geometry().kv_heads + kv_head;
  const pkv_store from = store();
  for (int64_t done = 0; done < count; done += piece) {
    const int64_t tokens = std::min(piece, count - done);
    PKV_RETURN_IF_ERROR(staged.export_row(stream, from, row, begin + done, tokens));
    PKV_RETURN_IF_ERROR(staged.copy_out(stream, planes_at(geometry(), out, begin, begin + done),
                                        begin + done, tokens));
    PKV_RETURN_IF_ERROR(stream.sync());
  }
  return stream.sync();
}

}  // namespace pkv
