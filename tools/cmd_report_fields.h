// Fields of a JSON object that came from a file. The first fault is kept, with the field's path;
// what is read after it does not matter.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/json.h"

namespace pkv::cli {

// The object in a file. Exit code 3 if there is none.
absl::StatusOr<Json> load_json(const std::string& path);

// Text of a file as one line of plain UTF-8: control characters become spaces.
std::string plain_text(std::string text);

class Fields {
 public:
  // `path` is that of `object` in the file, "" for the whole of it.
  Fields(const Json& object, std::string file, std::string path, absl::Status* status);

  bool has(const std::string& name) const;                // present, and not null
  std::string text(const std::string& name) const;        // must be there
  std::string maybe_text(const std::string& name) const;  // "" if it is not
  double number(const std::string& name) const;           // 0..1e15
  std::optional<double> maybe_number(const std::string& name) const;
  int64_t integer(const std::string& name) const;  // 0..1e15
  // A share of 0..1.
  std::optional<double> maybe_share(const std::string& name) const;
  // The array `name` of objects; the first may be missing or empty, the second not.
  std::vector<Fields> maybe_objects(const std::string& name) const;
  std::vector<Fields> objects(const std::string& name) const;
  std::vector<int64_t> maybe_integers(const std::string& name) const;
  // The object `name`; without fields if it is not there.
  Fields object(const std::string& name) const;
  bool is_object(const std::string& name) const;

  void refuse(const std::string& name, const std::string& what) const;
  const std::string& file() const { return file_; }

 private:
  const Json* find(const std::string& name) const;
  std::string path_of(const std::string& name) const;

  const Json* object_;
  std::string file_;
  std::string path_;
  absl::Status* status_;
};

}  // namespace pkv::cli
