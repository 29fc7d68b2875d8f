// .npz: a zip archive, stored and deflated members, the .npy inside. The archive is read from
// memory, and members are unpacked there.
#include <dlfcn.h>
#include <sys/mman.h>
#include <zip.h>

#include <cstdint>
#include <utility>

#include "tests/fuzz/reader.h"
#include "tools/reader_npz.h"

namespace pkv::fuzz {
namespace {

uint32_t crc32(const std::string& bytes) {
  uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (0xedb88320U & (0U - (crc & 1U)));
  }
  return ~crc;
}

template <class... Numbers>
std::string little(Numbers... numbers) {
  std::string bytes;
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof numbers), ...);
  return bytes;
}

using Members = std::vector<std::pair<std::string, std::string>>;

// A zip archive of these members. Deflated ones are a single block that is stored.
std::string npz(const Members& members, bool is_deflated) {
  std::string archive, folder;
  for (const auto& [name, bytes] : members) {
    const auto size = static_cast<uint32_t>(bytes.size());
    const auto length = static_cast<uint16_t>(size);
    std::string data = bytes;
    if (is_deflated) data = "\x01" + little(length, static_cast<uint16_t>(~length)) + bytes;
    const std::string about =
        little(uint16_t{20}, uint16_t{0}, static_cast<uint16_t>(is_deflated ? 8 : 0), uint32_t{33},
               crc32(bytes), static_cast<uint32_t>(data.size()), size,
               static_cast<uint16_t>(name.size()), uint16_t{0});
    folder += "PK\x01\x02" + little(uint16_t{20}) + about +
              little(uint16_t{0}, uint16_t{0}, uint16_t{0}, uint32_t{0},
                     static_cast<uint32_t>(archive.size())) +
              name;
    archive += "PK\x03\x04" + about + name + data;
  }
  const auto count = static_cast<uint16_t>(members.size());
  return archive + folder + "PK\x05\x06" +
         little(uint16_t{0}, uint16_t{0}, count, count, static_cast<uint32_t>(folder.size()),
                static_cast<uint32_t>(archive.size()), uint16_t{0});
}

std::string npy(const std::string& header, std::size_t data) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size());
  bytes += '\0';
  return bytes + header + std::string(data, '\0');
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string k = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }\n", 48);
  return {npz({{"k.npy", k}}, false), npz({{"k.npy", k}}, true),
          npz({{"v.npy", k}, {"k.npy", k}}, false)};
}

void run(Input input) {
  static MemoryFile file;
  file.fill(input);
  // Deflate gives at most 1032 bytes for one.
  check_tensor(cli::open_npz(file.path(), "k"), input.size() + 1024, 1032);
}

}  // namespace pkv::fuzz

// In front of libzip's.
extern "C" __attribute__((visibility("default"))) zip_t* zip_open(const char* path, int flags,
                                                                  int* code) {
  const auto* bytes = pkv::fuzz::memory_file(path);
  if (bytes == nullptr) {
    static const auto real =
        reinterpret_cast<zip_t* (*)(const char*, int, int*)>(dlsym(RTLD_NEXT, "zip_open"));
    return real(path, flags, code);
  }
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(bytes->data(), bytes->size(), 0, &error);
  zip_t* archive = source == nullptr ? nullptr : zip_open_from_source(source, flags, &error);
  if (archive == nullptr) {
    *code = zip_error_code_zip(&error);
    if (source != nullptr) zip_source_free(source);
  }
  zip_error_fini(&error);
  return archive;
}

// In front of the system's: the file for an unpacked member.
extern "C" __attribute__((visibility("default"))) int mkostemp(char* name, int /*flags*/) {
  return memfd_create(name, MFD_CLOEXEC);
}
