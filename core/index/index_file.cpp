// Saving, loading and restoring an Index. docs/format.md, sections 2.5 and 2.6.
#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text.h"
#include "core/format/half.h"
#include "core/format/records.h"
#include "core/index/file_geometry.h"
#include "core/index/file_reader.h"
#include "core/index/file_writer.h"
#include "core/index/index.h"
#include "core/index/record_planes.h"
#include "core/pipeline/checks.h"

namespace pkv {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;  // of records, staged at a time

// Host planes for the records of one piece.
class HostRecords {
 public:
  HostRecords(const pkv_geometry& geometry, int64_t tokens)
      : geometry_(geometry), bytes_(plane_bytes(geometry)) {
    for (std::size_t p = 0; p < bytes_.size(); ++p) {
      planes_[p].resize(static_cast<std::size_t>(bytes_[p] * tokens));
    }
  }
  bool has(std::size_t plane) const { return bytes_[plane] != 0; }
  // Of positions [begin, begin + count).
  int64_t plane_size(std::size_t plane, int64_t begin, int64_t count) const {
    return range_bytes(geometry_, begin, count)[plane];
  }
  uint8_t* plane(std::size_t plane) { return planes_[plane].data(); }
  pkv_records records() {
    std::array<uint8_t*, kPlanes> pointers{};
    for (std::size_t p = 0; p < bytes_.size(); ++p) pointers[p] = has(p) ? plane(p) : nullptr;
    return records_of(pointers, 0);
  }

 private:
  pkv_geometry geometry_;
  std::array<int64_t, kPlanes> bytes_;
  std::array<std::vector<uint8_t>, kPlanes> planes_;
};

int64_t piece_tokens(const pkv_geometry& geometry, std::span<const int64_t> lengths) {
  const int64_t longest = lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end());
  const int64_t tokens = std::max<int64_t>(1, kPieceBytes / format::record_bytes(geometry, 1));
  return std::min(tokens, std::max<int64_t>(1, longest));
}

// Calls `body(row, begin, count)` for all records in the order of the file.
template <class Body>
absl::Status for_each_piece(std::span<const int64_t> lengths, int32_t kv_heads, int64_t piece,
                            Body body) {
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    for (int32_t head = 0; head < kv_heads; ++head) {
      const int64_t row = static_cast<int64_t>(s) * kv_heads + head;
      for (int64_t begin = 0; begin < lengths[s]; begin += piece) {
        PKV_RETURN_IF_ERROR(body(row, begin, std::min(piece, lengths[s] - begin)));
      }
    }
  }
  return absl::OkStatus();
}

template <class Value>
absl::Status differs(std::string_view path, std::string_view field, Value file, Value index) {
  return absl::FailedPreconditionError(
      str_cat(path, ": ", field, " of the file=", file, ", of the index=", index));
}

// Everything but nonfinite, which is about calls to come, and capacity, which may differ.
absl::Status compare_fields(std::string_view path, const FileGeometry& file,
                            const FileGeometry& index) {
  struct Field {
    std::string_view name;
    int64_t file, index;
  };
  const Field fields[] = {
      {"kv_heads", file.kv_heads, index.kv_heads},
      {"head_dim", file.head_dim, index.head_dim},
      {"value_dim", file.value_dim, index.value_dim},
      {"v_source", file.v_source, index.v_source},
      {"codec", file.codec, index.codec},
      {"vote", file.vote, index.vote},
      {"rounds", file.rounds, index.rounds},
      {"sketch_bits", file.sketch_bits, index.sketch_bits},
      {"sketch_stride", file.sketch_stride, index.sketch_stride},
      {"value_norm", file.value_norm, index.value_norm},
      {"center", file.center, index.center},
      {"balance", file.balance, index.balance},
      {"fit_picked", file.fit_picked, index.fit_picked},
      {"sequences", file.sequences, index.sequences},
  };
  for (const Field& field : fields) {
    if (field.file != field.index) return differs(path, field.name, field.file, field.index);
  }
  if (file.seed != index.seed) return differs(path, "seed", file.seed, index.seed);
  return absl::OkStatus();
}

absl::Status compare_array(std::string_view path, std::string_view name,
                           std::span<const float> file, std::span<const float> index, int32_t dim) {
  for (std::size_t i = 0; i < file.size(); ++i) {
    if (std::bit_cast<uint32_t>(file[i]) == std::bit_cast<uint32_t>(index[i])) continue;
    const auto width = static_cast<std::size_t>(dim);
    const std::string field =
        str_cat(name, "[KV head ", i / width, ", coordinate ", i % width, "]");
    return differs(path, field, absl::StrFormat("%.9g", file[i]),
                   absl::StrFormat("%.9g", index[i]));
  }
  return absl::OkStatus();
}

absl::Status compare_params(std::string_view path, const CodecParams& file,
                            const CodecParams& index) {
  const pkv_geometry& g = index.geometry();
  PKV_RETURN_IF_ERROR(compare_array(path, "center", file.center(), index.center(), g.head_dim));
  PKV_RETURN_IF_ERROR(compare_array(path, "balance", file.balance(), index.balance(), g.head_dim));
  return compare_array(path, "value_center", file.value_center(), index.value_center(),
                       g.value_dim);
}

// 3.7, from canonical records: good keys per subspace and pattern.
void count_patterns(const pkv_geometry& geometry, const pkv_records& records, int64_t count,
                    std::span<int32_t> occupancy) {
  const int32_t subspaces = geometry.head_dim / format::kSubspace;
  const int64_t factors = format::factors_per_key(geometry);
  for (int64_t t = 0; t < count; ++t) {
    if (records.factors[t * factors] == format::kBf16Nan) continue;  // a bad key (3.6)
    for (int32_t b = 0; b < subspaces; ++b) {
      const int64_t pattern = records.signs[t * subspaces + b];
      ++occupancy[static_cast<std::size_t>(b * format::kCentroids + pattern)];
    }
  }
}

std::vector<int64_t> lengths_of(const std::vector<FileSequence>& sequences) {
  std::vector<int64_t> lengths;
  lengths.reserve(sequences.size());
  for (const FileSequence& sequence : sequences) lengths.push_back(sequence.length);
  return lengths;
}

template <class Number>
int64_t size_bytes(const std::vector<Number>& numbers) {
  return static_cast<int64_t>(numbers.size() * sizeof(Number));
}

}  // namespace

absl::Status Index::save_sync(const Stream& stream, const std::string& path,
                              bool may_overwrite) const {
  PKV_RETURN_IF_ERROR(check_stream(stream));
  PKV_RETURN_IF_ERROR(check_whole());
  const pkv_geometry& g = geometry();
  std::vector<FileSequence> sequences;
  sequences.reserve(static_cast<std::size_t>(sizes_.sequences));
  for (int32_t s = 0; s < sizes_.sequences; ++s) {
    sequences.push_back({length(s), has_values(s) ? 0U : uint32_t{kSequenceLacksValues}, 0});
  }
  const std::vector<int64_t> lengths = lengths_of(sequences);
  PKV_ASSIGN_OR_RETURN(const auto good, read_back(stream, good_counts(), sizes_.rows));
  PKV_ASSIGN_OR_RETURN(const auto sums, read_back(stream, value_sums(), sizes_.rows * g.value_dim));
  const FileGeometry fields =
      file_geometry(codec_->geometry(), codec_->options(), sizes_.sequences, sizes_.capacity);
  const CodecParams& numbers = codec_->numbers();
  const std::span<const float> params[] = {numbers.center(), numbers.balance(),
                                           numbers.value_center()};
  int64_t param_bytes = 0;
  for (const auto& array : params) param_bytes += static_cast<int64_t>(array.size_bytes());

  std::vector<SectionSize> sections = {{kGeometrySection, sizeof fields},
                                       {kParamsSection, param_bytes},
                                       {kSequencesSection, size_bytes(sequences)},
                                       {kGoodCountsSection, size_bytes(good)}};
  if (g.value_dim > 0) sections.push_back({kValueSumsSection, size_bytes(sums)});
  const auto planes = plane_bytes(g);
  for (std::size_t p = 0; p < planes.size(); ++p) {
    if (planes[p] == 0) continue;
    const int64_t entries = entry_count(g, static_cast<int>(p), lengths);
    sections.push_back({kPlaneSections[p], entries * planes[p]});
  }
  PKV_ASSIGN_OR_RETURN(PkvWriter file, PkvWriter::create(path, may_overwrite, sections));
  PKV_RETURN_IF_ERROR(file.write(kGeometrySection, &fields, sizeof fields));
  for (const auto& array : params) {
    PKV_RETURN_IF_ERROR(
        file.write(kParamsSection, array.data(), static_cast<int64_t>(array.size_bytes())));
  }
  PKV_RETURN_IF_ERROR(file.write(kSequencesSection, sequences.data(), size_bytes(sequences)));
  PKV_RETURN_IF_ERROR(file.write(kGoodCountsSection, good.data(), size_bytes(good)));
  if (g.value_dim > 0) {
    PKV_RETURN_IF_ERROR(file.write(kValueSumsSection, sums.data(), size_bytes(sums)));
  }

  const int64_t piece = piece_tokens(g, lengths);
  PKV_ASSIGN_OR_RETURN(const StagedRecords staged, StagedRecords::create(device_, g, piece));
  HostRecords host(g, piece);
  const pkv_store from = store();
  absl::Status written = for_each_piece(
      lengths, g.kv_heads, piece, [&](int64_t row, int64_t begin, int64_t count) -> absl::Status {
        PKV_RETURN_IF_ERROR(staged.export_row(stream, from, row, begin, count));
        PKV_RETURN_IF_ERROR(staged.copy_out(stream, host.records(), begin, count));
        PKV_RETURN_IF_ERROR(stream.sync());
        for (std::size_t p = 0; p < planes.size(); ++p) {
          if (!host.has(p)) continue;
          PKV_RETURN_IF_ERROR(
              file.write(kPlaneSections[p], host.plane(p), host.plane_size(p, begin, count)));
        }
        return absl::OkStatus();
      });
  if (!written.ok()) {
    stream.sync().IgnoreError();  // copies that were enqueued write the host planes
    return written;
  }
  return file.commit();
}

absl::Status Index::read_records(const Stream& stream, const PkvReader& file,
                                 const std::vector<int64_t>& lengths, Content& content) const {
  const pkv_geometry& g = geometry();
  std::vector<SectionStream> sections;
  std::vector<std::size_t> plane_numbers;
  for (std::size_t p = 0; p < kPlanes; ++p) {
    if (plane_bytes(g)[p] == 0) continue;
    sections.push_back(file.plane(static_cast<int>(p)));
    plane_numbers.push_back(p);
  }
  const int64_t piece = piece_tokens(g, lengths);
  PKV_ASSIGN_OR_RETURN(const StagedRecords staged, StagedRecords::create(device_, g, piece));
  HostRecords host(g, piece);
  pkv_store to = store();
  to.base = content.records.data();
  const bool has_occupancy = content.occupancy.bytes() > 0;
  const int64_t row_patterns = int64_t{g.head_dim} / format::kSubspace * format::kCentroids;
  std::vector<int32_t> patterns(static_cast<std::size_t>(has_occupancy ? row_patterns : 0));
  absl::Status read = for_each_piece(
      lengths, g.kv_heads, piece, [&](int64_t row, int64_t begin, int64_t count) -> absl::Status {
        for (std::size_t i = 0; i < sections.size(); ++i) {
          const std::size_t p = plane_numbers[i];
          PKV_RETURN_IF_ERROR(sections[i].read(host.plane(p), host.plane_size(p, begin, count)));
        }
        PKV_RETURN_IF_ERROR(staged.copy_in(stream, host.records(), begin, count));
        PKV_RETURN_IF_ERROR(staged.import_row(stream, to, row, begin, count));
        if (has_occupancy) {
          if (begin == 0) std::fill(patterns.begin(), patterns.end(), 0);
          count_patterns(g, host.records(), count, patterns);
          // Once more with every piece; the last one leaves the whole row.
          PKV_RETURN_IF_ERROR(stream.copy(content.occupancy.as<int32_t>() + row * row_patterns,
                                          patterns.data(), size_bytes(patterns)));
        }
        return stream.sync();  // the host planes are used again
      });
  if (!read.ok()) {
    stream.sync().IgnoreError();  // copies that were enqueued read the host planes
    return read;
  }
  for (const SectionStream& section : sections) PKV_RETURN_IF_ERROR(section.finish());
  return file.check_unknown();
}

// Reads into fresh memory, which takes the place of the old at the very end.
absl::Status Index::read_content(const Stream& stream, const PkvReader& file) {
  const std::vector<int64_t> lengths = lengths_of(file.sequences());
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    if (lengths[s] <= sizes_.capacity) continue;
    return absl::ResourceExhaustedError(str_cat(file.path(), ": sequence ", s, " needs ",
                                                lengths[s], " tokens, the index has room for ",
                                                sizes_.capacity));
  }
  PKV_ASSIGN_OR_RETURN(Content content, create_content());
  PKV_RETURN_IF_ERROR(clear_content(stream, content));
  absl::Status status = read_records(stream, file, lengths, content);
  if (status.ok()) {
    status = stream.copy(content.good_counts.data(), file.good_counts().data(),
                         size_bytes(file.good_counts()));
  }
  if (status.ok()) {
    status = stream.copy(content.value_sums.data(), file.value_sums().data(),
                         size_bytes(file.value_sums()));
  }
  if (status.ok()) {
    status = stream.copy(content.lengths.data(), lengths.data(), size_bytes(lengths));
  }
  // Also after a failure: what was enqueued uses memory that goes away now.
  const absl::Status passed = stream.sync();
  PKV_RETURN_IF_ERROR(status);
  PKV_RETURN_IF_ERROR(passed);
  content_ = std::move(content);
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    set_half(s, false);
    state_[s].length = lengths[s];
    ++state_[s].generation;
    state_[s].lacks_values = (file.sequences()[s].flags & kSequenceLacksValues) != 0;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Index>> Index::load_sync(std::shared_ptr<const Device> device,
                                                        const Stream& stream,
                                                        const std::string& path) {
  PKV_RETURN_IF_ERROR(stream.check_device(device, "given"));
  PKV_ASSIGN_OR_RETURN(const PkvReader file, PkvReader::open(path));
  PKV_ASSIGN_OR_RETURN(CodecParams numbers, file.params());
  PKV_ASSIGN_OR_RETURN(std::shared_ptr<const Codec> codec,
                       Codec::create(device, std::move(numbers), file.options()));
  PKV_ASSIGN_OR_RETURN(
      std::shared_ptr<Index> index,
      create(std::move(device), std::move(codec), file.fields().sequences, file.fields().capacity));
  PKV_RETURN_IF_ERROR(index->read_content(stream, file));
  return index;
}

absl::Status Index::restore_sync(const Stream& stream, const std::string& path) {
  PKV_RETURN_IF_ERROR(check_stream(stream));
  PKV_ASSIGN_OR_RETURN(const PkvReader file, PkvReader::open(path));
  PKV_RETURN_IF_ERROR(compare_fields(
      path, file.fields(),
      file_geometry(codec_->geometry(), codec_->options(), sizes_.sequences, sizes_.capacity)));
  PKV_ASSIGN_OR_RETURN(const CodecParams numbers, file.params());
  PKV_RETURN_IF_ERROR(compare_params(path, numbers, codec_->numbers()));
  // Work on the memory that is about to go.
  PKV_RETURN_IF_ERROR(stream.sync());
  return read_content(stream, file);
}

}  // namespace pkv
