// A target without libFuzzer: its seeds, the files of its corpus, and a fixed number of inputs that
// are made of these by seeded mutations.
//   pkv_fuzz_NAME [--runs N] [--seed S] [--only I] CORPUS...
// Input I depends on seed, corpus and I alone. It is run in a child process, so that the parent can
// say which one ended it.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/fuzz/fuzz.h"

namespace pkv::fuzz {
namespace {

constexpr std::size_t kMostBytes = 1 << 16;

// splitmix64
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t limit) { return static_cast<std::size_t>(next() % limit); }

 private:
  uint64_t state_;
};

uint64_t telling_number(Random& random) {
  constexpr uint64_t kNumbers[] = {
      0,          1,        2,   7,          8,          255,       256,        0x7fff, 0xffff,
      0x7fffffff, 1U << 31, ~0U, 1ULL << 32, 1ULL << 62, ~0ULL / 2, 1ULL << 63, ~0ULL,  ~0ULL - 7};
  const uint64_t number = kNumbers[random.below(std::size(kNumbers))];
  return random.below(4) == 0 ? number + random.below(17) - 8 : number;
}

void mutate(Random& random, const std::vector<std::string>& pool, std::string& bytes) {
  if (bytes.empty()) bytes.assign(1 + random.below(8), '\0');
  const std::size_t at = random.below(bytes.size());
  const std::size_t left = bytes.size() - at;
  switch (random.below(9)) {
    case 0: bytes[at] = static_cast<char>(random.next()); break;
    case 1: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8))); break;
    case 2: bytes.erase(at, 1 + random.below(std::min<std::size_t>(left, 64))); break;
    case 3: bytes.insert(at, 1 + random.below(8), static_cast<char>(random.next())); break;
    case 4: bytes.insert(at, 1, "0123456789[]{}()<>,:\"'-+.=\\ \n"[random.below(29)]); break;
    case 5: {  // a number of 1 to 8 bytes
      const uint64_t number = telling_number(random);
      std::memcpy(&bytes[at], &number, std::min(left, std::size_t{1} << random.below(4)));
      break;
    }
    case 6: bytes.insert(at, bytes.substr(random.below(bytes.size()), 1 + random.below(64))); break;
    case 7: {  // a piece of another input over this one
      const std::string& other = pool[random.below(pool.size())];
      if (other.empty()) break;
      const std::string piece = other.substr(random.below(other.size()), 1 + random.below(128));
      bytes.replace(at, piece.size(), piece);
      break;
    }
    default: {  // the rest of another input
      const std::string& other = pool[random.below(pool.size())];
      if (other.empty()) break;
      bytes = bytes.substr(0, at) + other.substr(random.below(other.size()));
    }
  }
  if (bytes.size() > kMostBytes) bytes.resize(kMostBytes);
}

std::string input_at(const std::vector<std::string>& pool, uint64_t seed, uint64_t index) {
  if (index < pool.size()) return pool[index];
  Random random(seed * 1000003 + index);
  std::string bytes = pool[random.below(pool.size())];
  for (std::size_t edits = 1 + random.below(6); edits > 0; --edits) mutate(random, pool, bytes);
  return bytes;
}

struct Pool {
  std::vector<std::string> inputs;
  std::vector<std::string> names;
};

Pool pool_of(const std::vector<std::string>& folders) {
  Pool pool;
  for (std::string& seed : seeds()) {
    pool.names.push_back("seed " + std::to_string(pool.inputs.size()));
    pool.inputs.push_back(std::move(seed));
  }
  std::vector<std::string> files;
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) {
    pool.names.push_back(file);
    pool.inputs.push_back(read_file(file));
  }
  return pool;
}

// Without a sanitizer, which has its own limit, a number in a file must not bring the machine down.
void limit_memory() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  const rlimit limit = {rlim_t{4} << 30, rlim_t{4} << 30};
  require(setrlimit(RLIMIT_AS, &limit) == 0, "memory can be limited");
#endif
}

uint64_t number(const char* text) {
  uint64_t value = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, value);
  require(error == std::errc() && stop == end, "options take whole numbers");
  return value;
}

int drive(int count, char** words) {
  uint64_t runs = 1000, seed = 1, only = UINT64_MAX;
  std::vector<std::string> folders;
  for (int i = 1; i < count; ++i) {
    const std::string_view word = words[i];
    uint64_t* option = word == "--runs"   ? &runs
                       : word == "--seed" ? &seed
                       : word == "--only" ? &only
                                          : nullptr;
    if (option == nullptr) {
      folders.emplace_back(word);
    } else if (++i < count) {
      *option = number(words[i]);
    }
  }
  void* shared =
      mmap(nullptr, sizeof(uint64_t), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require(shared != MAP_FAILED, "parent and child can share memory");
  auto* reached = static_cast<volatile uint64_t*>(shared);
  std::fflush(nullptr);
  const pid_t child = fork();
  require(child >= 0, "there can be a child");
  if (child == 0) {
    limit_memory();
    const Pool pool = pool_of(folders);
    const uint64_t all = pool.inputs.size() + runs;
    for (uint64_t i = only == UINT64_MAX ? 0 : only; i < all; ++i) {
      *reached = i;
      const std::string input = input_at(pool.inputs, seed, i);
      run(as_input(input));
      if (only != UINT64_MAX) break;
    }
    std::printf("%zu inputs of the corpus, %llu mutated ones\n", pool.inputs.size(),
                static_cast<unsigned long long>(runs));
    std::exit(0);
  }
  int status = 0;
  require(waitpid(child, &status, 0) == child, "the child ends");
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  const Pool pool = pool_of(folders);
  const uint64_t at = *reached;
  std::string places;
  for (const std::string& folder : folders) places += " " + folder;
  std::fprintf(
      stderr, "input %llu of seed %llu (%s) ended it; again: %s --seed %llu --only %llu%s\n",
      static_cast<unsigned long long>(at), static_cast<unsigned long long>(seed),
      at < pool.names.size() ? pool.names[at].c_str() : "mutated", words[0],
      static_cast<unsigned long long>(seed), static_cast<unsigned long long>(at), places.c_str());
  return 1;
}

}  // namespace
}  // namespace pkv::fuzz

int main(int count, char** words) { return pkv::fuzz::drive(count, words); }
