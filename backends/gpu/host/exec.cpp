#include "backends/gpu/host/exec.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>

#include "backends/gpu/host/fiber.h"

namespace pkv::gpu_exec {
namespace {

constexpr int32_t kMostGroup = 32;
constexpr int32_t kGroupSizes = 6;  // 1, 2, .., 32
constexpr int64_t kMostSpins = int64_t{1} << 20;
constexpr int64_t kDynamicAlignment = 128;
constexpr uint8_t kUndefined = 0xA5;  // shared memory at the start of a block

// splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA'14.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15U;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }

 private:
  uint64_t state_;
};

struct Stopped {};  // thrown through the lanes of a launch that failed

enum class Operation { kNone, kBarrier, kGroupSync, kBallot, kShuffle };

const char* name_of(Operation operation) {
  switch (operation) {
    case Operation::kBarrier: return "block barrier";
    case Operation::kGroupSync: return "group sync";
    case Operation::kBallot: return "ballot";
    case Operation::kShuffle: return "shuffle";
    default: return "nothing";
  }
}

bool is_same(Site a, Site b) {
  return a.line == b.line && (a.file == b.file || std::strcmp(a.file, b.file) == 0);
}

std::string text_of(Site site) {
  const char* name = std::strrchr(site.file, '/');
  return std::string(name == nullptr ? site.file : name + 1) + ":" + std::to_string(site.line);
}

struct Block;

struct Lane {
  explicit Lane(FiberCaller& caller) : fiber(caller) {}

  Fiber fiber;
  Block* block = nullptr;
  int32_t thread = 0;
  Operation waits_for = Operation::kNone;
  int32_t group_size = 0;
  Site site = {"", 0};
  int64_t spins = 0;
  Lane* next_waiting = nullptr;  // of the same meeting
};

// Lanes that meet. Two sets of values: a lane may come to the next meeting before the others have
// read those of this one.
struct Meeting {
  int32_t arrived = 0;
  uint32_t generation = 0;
  Operation operation = Operation::kNone;
  Site site = {"", 0};
  uint64_t values[2][kMostGroup];
  Lane* first_waiting = nullptr;
  Lane* last_waiting = nullptr;

  void add_waiting(Lane* lane) {
    lane->next_waiting = nullptr;
    (first_waiting == nullptr ? first_waiting : last_waiting->next_waiting) = lane;
    last_waiting = lane;
  }
};

struct SharedPiece {
  const void* key;
  void* memory;
  std::align_val_t alignment;
};

struct Block {
  Grid index;
  std::vector<Lane*> lanes;
  int32_t ended = 0;
  Meeting barrier;
  std::vector<Meeting> groups[kGroupSizes];
  std::vector<SharedPiece> shared;
  int64_t static_bytes = 0;
  void* dynamic = nullptr;

  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  // Memory of its own, so that a sanitizer sees an access behind it.
  void* add_shared(const void* key, int64_t bytes, int64_t alignment) {
    const auto align = static_cast<std::align_val_t>(alignment);
    void* memory = ::operator new(static_cast<std::size_t>(bytes), align);
    std::memset(memory, kUndefined, static_cast<std::size_t>(bytes));
    shared.push_back({key, memory, align});
    return memory;
  }
  ~Block() {
    for (const SharedPiece& piece : shared) ::operator delete(piece.memory, piece.alignment);
  }
};

// The lane that runs on this thread; kernels have no other way to know who they are, and ask all
// the time: found without a call.
[[gnu::tls_model("initial-exec")]] thread_local Lane* current_lane = nullptr;
[[gnu::tls_model("initial-exec")]] thread_local Worker* current_worker = nullptr;

}  // namespace

// Runs launches, one at a time, on the calling thread. Its fibers are used again and again.
class Worker {
 public:
  std::string run(const Launch& launch, const Options& options, const std::function<void()>& body);

  const Launch& launch() const { return *launch_; }
  const Options& options() const { return options_; }
  Random& random() { return random_; }

  // Suspends the running lane until it is woken; the next that is ready goes on at once.
  void wait() {
    Lane* const lane = current_lane;
    if (!failure_.empty() || ready_.empty()) {
      lane->fiber.pause();
    } else if (Lane* const next = next_lane(); next != lane) {
      current_lane = next;
      lane->fiber.change_to(next->fiber);
    }
    if (!failure_.empty()) throw Stopped();
  }
  void wake(Lane* lane) {
    lane->waits_for = Operation::kNone;
    ready_.push_back(lane);
  }
  // Lets others go first, sometimes, where an order was asked for.
  void may_step_back() {
    if (options_.seed == 0 || (random_.next() & 1) != 0) return;
    wake(current_lane);
    wait();
  }
  void set_failure(const std::string& text) {
    if (failure_.empty()) failure_ = text;
  }

 private:
  void run_blocks(const std::vector<Grid>& blocks);
  std::unique_ptr<Block> make_block(Grid index, std::size_t first_lane);
  void run_lane(Lane* lane);
  void stop_lanes(const std::vector<std::unique_ptr<Block>>& blocks);
  Lane* next_lane();

  const Launch* launch_ = nullptr;
  const std::function<void()>* body_ = nullptr;
  Options options_;
  Random random_{0};
  std::string failure_;
  FiberCaller caller_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Lane*> ready_;
  std::size_t ready_begin_ = 0;
};

namespace {

std::string place_of(const Lane& lane) {
  const Grid block = lane.block->index;
  return std::string("kernel ") + current_worker->launch().kernel + ", block (" +
         std::to_string(block.x) + ", " + std::to_string(block.y) + "), lane " +
         std::to_string(lane.thread);
}

std::string waits_of(const Lane& lane) {
  return std::string(name_of(lane.waits_for)) + " at " + text_of(lane.site);
}

// Of lanes that all wait: who waits for whom.
std::string divergence(const Block& block) {
  const Lane* waiting = nullptr;
  for (const Lane* lane : block.lanes) {
    if (lane->waits_for == Operation::kNone) continue;
    if (waiting == nullptr) waiting = lane;
  }
  if (waiting == nullptr) return "no lane can go on";
  std::string text = place_of(*waiting) + " waits at " + waits_of(*waiting);
  const int32_t size = waiting->waits_for == Operation::kBarrier
                           ? static_cast<int32_t>(block.lanes.size())
                           : waiting->group_size;
  const int32_t first = waiting->thread / size * size;
  for (int32_t i = first; i < first + size; ++i) {
    const Lane& other = *block.lanes[static_cast<std::size_t>(i)];
    if (other.waits_for == waiting->waits_for && other.group_size == waiting->group_size) continue;
    const std::string who = " for lane " + std::to_string(i);
    if (other.waits_for == Operation::kNone) return text + who + ", which has ended";
    return text + who + ", which waits at " + waits_of(other);
  }
  return text;
}

[[noreturn, gnu::cold, gnu::noinline]] void fail_meeting(const Meeting& meeting,
                                                         Operation operation, Site site) {
  fail(std::string(name_of(operation)) + ", while others of the group are at " +
           name_of(meeting.operation) + " at " + text_of(meeting.site),
       site);
}

[[noreturn, gnu::cold, gnu::noinline]] void fail_group(int32_t size) {
  fail("a group of " + std::to_string(size) + " lanes", Site::here());
}

// Returns the values of the meeting once all `size` lanes have come.
const uint64_t* meet(Meeting& meeting, int32_t size, int32_t rank, Operation operation,
                     uint64_t value, Site site) {
  Lane* lane = current_lane;
  if (meeting.arrived == 0) {
    meeting.operation = operation;
    meeting.site = site;
  } else if (meeting.operation != operation || !is_same(meeting.site, site)) {
    fail_meeting(meeting, operation, site);
  }
  uint64_t* values = meeting.values[meeting.generation % 2];
  if (rank < kMostGroup) values[rank] = value;
  lane->site = site;
  lane->group_size = size;
  if (++meeting.arrived < size) {
    meeting.add_waiting(lane);
    lane->waits_for = operation;
    current_worker->wait();
    return values;
  }
  meeting.arrived = 0;
  ++meeting.generation;
  for (Lane* other = meeting.first_waiting; other != nullptr; other = other->next_waiting) {
    current_worker->wake(other);
  }
  meeting.first_waiting = nullptr;
  current_worker->may_step_back();
  return values;
}

const uint64_t* meet_group(int32_t size, Operation operation, uint64_t value, Site site) {
  if (size < 1 || size > kMostGroup || !std::has_single_bit(static_cast<uint32_t>(size))) {
    fail_group(size);
  }
  const int32_t log2 = std::countr_zero(static_cast<uint32_t>(size));
  Lane* lane = current_lane;
  std::vector<Meeting>& groups = lane->block->groups[log2];
  if (groups.empty()) groups.resize(lane->block->lanes.size() >> log2);
  return meet(groups[static_cast<std::size_t>(lane->thread >> log2)], size,
              lane->thread & (size - 1), operation, value, site);
}

// The first lane of the caller's run of `size`, as its hardware group numbers them.
int32_t first_lane(int32_t size) {
  return current_lane->thread & (current_worker->options().lanes - 1) & ~(size - 1);
}

}  // namespace

int32_t thread_index() { return current_lane->thread; }
int32_t block_size() { return current_worker->launch().threads; }
Grid block_index() { return current_lane->block->index; }
Grid grid_size() { return current_worker->launch().grid; }
int32_t hardware_lanes() { return current_worker->options().lanes; }

void sync_block(Site site) {
  meet(current_lane->block->barrier, block_size(), kMostGroup, Operation::kBarrier, 0, site);
}

void sync_group(int32_t size, Site site) { meet_group(size, Operation::kGroupSync, 0, site); }

uint64_t ballot(int32_t size, bool predicate, Site site) {
  const uint64_t* values = meet_group(size, Operation::kBallot, predicate ? 1 : 0, site);
  uint64_t bits = 0;
  for (int32_t i = 0; i < size; ++i) bits |= values[i] << i;
  const int32_t first = first_lane(size);
  const uint64_t members = ((uint64_t{1} << size) - 1) << first;
  const uint64_t hardware = ~uint64_t{0} >> (64 - hardware_lanes());
  return (bits << first) | (current_worker->random().next() & hardware & ~members);
}

uint64_t shuffle(int32_t size, uint64_t bits, int32_t source, Site site) {
  const uint64_t* values = meet_group(size, Operation::kShuffle, bits, site);
  const int32_t rank = source - first_lane(size);
  return rank >= 0 && rank < size ? values[rank] : current_worker->random().next();
}

void spin_pause(Site site) {
  if (!current_worker->launch().is_cooperative) {
    fail("waits for another block in a launch that is not cooperative", site);
  }
  if (++current_lane->spins > kMostSpins) fail("waits for another block without end", site);
  current_worker->wake(current_lane);
  current_worker->wait();
}

void* static_shared(const void* key, int64_t bytes, int64_t alignment, Site site) {
  Block& block = *current_lane->block;
  for (const SharedPiece& piece : block.shared) {
    if (piece.key == key) return piece.memory;
  }
  block.static_bytes += bytes;
  const int64_t most = hardware_lanes() == 64 ? kMostShared64 : kMostShared32;
  if (block.static_bytes > kStaticShared ||
      block.static_bytes + current_worker->launch().dynamic_bytes > most) {
    fail("shared memory: static=" + std::to_string(block.static_bytes) + " dynamic=" +
             std::to_string(current_worker->launch().dynamic_bytes) + " bytes, at most " +
             std::to_string(kStaticShared) + " and in all " + std::to_string(most),
         site);
  }
  return block.add_shared(key, bytes, alignment);
}

void* dynamic_shared() { return current_lane->block->dynamic; }

void fail(const std::string& text, Site site) {
  current_worker->set_failure(place_of(*current_lane) + ": " + text + " at " + text_of(site));
  throw Stopped();
}

std::unique_ptr<Block> Worker::make_block(Grid index, std::size_t first_lane) {
  auto block = std::make_unique<Block>();
  block->index = index;
  if (launch_->dynamic_bytes > 0) {
    block->dynamic = block->add_shared(nullptr, launch_->dynamic_bytes, kDynamicAlignment);
  }
  for (int32_t t = 0; t < launch_->threads; ++t) {
    Lane* lane = lanes_[first_lane + static_cast<std::size_t>(t)].get();
    lane->block = block.get();
    lane->thread = t;
    lane->waits_for = Operation::kNone;
    lane->spins = 0;
    lane->fiber.start([this, lane] {
      try {
        if (failure_.empty()) (*body_)();
      } catch (const Stopped&) {
      } catch (const std::exception& error) {
        set_failure(place_of(*lane) + ": exception: " + error.what());
      }
      ++lane->block->ended;
    });
    block->lanes.push_back(lane);
    ready_.push_back(lane);
  }
  return block;
}

Lane* Worker::next_lane() {
  if (options_.seed != 0) {
    const std::size_t waiting = ready_.size() - ready_begin_;
    std::swap(ready_[ready_begin_], ready_[ready_begin_ + random_.below(waiting)]);
  }
  Lane* lane = ready_[ready_begin_++];
  if (ready_begin_ == ready_.size()) {
    ready_.clear();
    ready_begin_ = 0;
  } else if (ready_begin_ >= 4096 && 2 * ready_begin_ >= ready_.size()) {
    ready_.erase(ready_.begin(), ready_.begin() + static_cast<std::ptrdiff_t>(ready_begin_));
    ready_begin_ = 0;
  }
  return lane;
}

void Worker::run_lane(Lane* lane) {
  current_lane = lane;
  lane->fiber.resume();
  current_lane = nullptr;
}

void Worker::stop_lanes(const std::vector<std::unique_ptr<Block>>& blocks) {
  ready_.clear();
  ready_begin_ = 0;
  for (const auto& block : blocks) {
    for (Lane* lane : block->lanes) {
      while (!lane->fiber.has_ended()) run_lane(lane);
    }
  }
  ready_.clear();
  ready_begin_ = 0;
}

// Blocks that are alive at once.
void Worker::run_blocks(const std::vector<Grid>& indices) {
  const std::size_t threads = static_cast<std::size_t>(launch_->threads);
  while (lanes_.size() < indices.size() * threads)
    lanes_.push_back(std::make_unique<Lane>(caller_));
  std::vector<std::unique_ptr<Block>> blocks;
  for (const Grid index : indices) blocks.push_back(make_block(index, blocks.size() * threads));
  while (failure_.empty() && !ready_.empty()) run_lane(next_lane());
  if (failure_.empty()) {
    for (const auto& block : blocks) {
      if (block->ended == launch_->threads) continue;
      set_failure(divergence(*block));
      break;
    }
  }
  if (!failure_.empty()) stop_lanes(blocks);
}

std::string Worker::run(const Launch& launch, const Options& options,
                        const std::function<void()>& body) {
  Worker* const outer_worker = std::exchange(current_worker, this);
  launch_ = &launch;
  body_ = &body;
  options_ = options;
  random_ = Random(options.seed);
  failure_.clear();
  std::vector<Grid> blocks;
  for (uint32_t y = 0; y < launch.grid.y; ++y) {
    for (uint32_t x = 0; x < launch.grid.x; ++x) blocks.push_back({x, y});
  }
  if (options.seed != 0) {
    for (std::size_t i = blocks.size(); i > 1; --i) {
      std::swap(blocks[i - 1], blocks[random_.below(i)]);
    }
  }
  if (launch.is_cooperative) {
    run_blocks(blocks);
  } else {
    for (std::size_t i = 0; i < blocks.size() && failure_.empty(); ++i) run_blocks({blocks[i]});
  }
  current_worker = outer_worker;
  return failure_;
}

Machine::Machine() = default;
Machine::~Machine() = default;

Options Machine::options() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return options_;
}

void Machine::set_options(const Options& options) {
  const std::lock_guard<std::mutex> lock(mutex_);
  options_ = options;
}

std::unique_ptr<Worker> Machine::take_worker() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (idle_.empty()) return std::make_unique<Worker>();
  std::unique_ptr<Worker> worker = std::move(idle_.back());
  idle_.pop_back();
  return worker;
}

std::string Machine::run(const Launch& launch, const std::function<void()>& lane) {
  if (launch.grid.x == 0 || launch.grid.y == 0 || launch.grid.y > 65535 || launch.threads <= 0 ||
      launch.threads % 64 != 0 || launch.threads > 1024) {
    return std::string("kernel ") + launch.kernel + ": grid (" + std::to_string(launch.grid.x) +
           ", " + std::to_string(launch.grid.y) + "), " + std::to_string(launch.threads) +
           " threads: grids have no side of 0 and y up to 65,535, blocks 64, 128, .. 1024 threads";
  }
  std::unique_ptr<Worker> worker = take_worker();
  std::string failure = worker->run(launch, options(), lane);
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(worker));
  return failure;
}

}  // namespace pkv::gpu_exec
