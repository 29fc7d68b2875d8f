// Files of saved caches, loaded into a cache in use. What is refused leaves it as it was; what is
// taken can be attended to, appended to, cut and removed.
#include <exception>

#include "tests/fuzz/pkv_bytes.h"
#include "tests/model/world.h"

namespace pkv::fuzz {
namespace {

using cache_model::Attended;
using cache_model::Machine;
using cache_model::Shape;
using cache_model::World;

std::vector<uint64_t> tokens_from(uint64_t first, int64_t count) {
  std::vector<uint64_t> tokens;
  for (int64_t i = 0; i < count; ++i) tokens.push_back(first + static_cast<uint64_t>(i));
  return tokens;
}

Shape shape() {
  Shape shape;
  shape.layers = 2;
  shape.sequences = 4;
  shape.kv_heads = 1;
  shape.query_heads = 2;
  shape.head_dim = shape.value_dim = 8;
  shape.capacity = 300;
  shape.local = shape.interval = 16;
  shape.dense_below = 32;
  shape.fit_positions = 4;
  shape.options = {{"k", "4"}, {"candidates", "0.5"}, {"nonfinite", "isolate"}};
  shape.policies = {{PKV_CACHE_SPARSE, 0}, {PKV_CACHE_WINDOW, 20}};
  return shape;
}

struct Setup {
  Setup() : machine("cpu"), world(machine, shape()) {
    check(pkv_device_set(machine.device.get(), "threads", "1"));
    sequence = world.add();
    world.append_all(sequence, tokens_from(70, 60));
    before = content();
  }
  std::string content() { return world.content_of(0, sequence) + world.content_of(1, sequence); }
  Machine machine;
  World world;
  int32_t sequence;
  std::string before;
};

Setup& setup() {
  static Setup* const kept = new Setup;
  return *kept;
}

std::string saved(std::initializer_list<int64_t> lengths) {
  World world(setup().machine, shape());
  for (const int64_t length : lengths) {
    world.append_all(world.add(), tokens_from(static_cast<uint64_t>(1000 * length), length));
  }
  const Folder folder;
  const std::string path = folder.file("seed.pkv");
  check(pkv_cache_save_sync(world.cache(), world.stream(), -1, path.c_str(), 0));
  return read_file(path);
}

void use(World& world, int32_t sequence) {
  for (int32_t layer = 0; layer < world.shape().layers; ++layer) {
    const int64_t tokens = world.length(layer, sequence);
    require(tokens >= 0 && tokens <= world.shape().capacity, "a length is within the capacity");
    Attended out;
    const pkv_status status = world.decode_step(layer, {{sequence, {7}}}, 0, out);
    require(status == (tokens == world.shape().capacity ? PKV_RESOURCE_EXHAUSTED : PKV_OK),
            "a loaded sequence is decoded with where it has room");
  }
  const int64_t shortest = std::min(world.length(0, sequence), world.length(1, sequence));
  world.truncate(sequence, shortest / 2);
  world.append_all(sequence, tokens_from(5, 3));
}

}  // namespace

std::vector<std::string> seeds() { return {saved({60}), saved({40, 0, 9}), saved({})}; }

void run(Input input) {
  static MemoryFile file;
  World& world = setup().world;
  file.fill(mended(input));
  int32_t sequences[3] = {-1, -1, -1};
  int32_t count = 0;
  const pkv_status status =
      pkv_cache_load_sync(world.cache(), world.stream(), file.path().c_str(), 3, sequences, &count);
  if (status == PKV_OK) {
    require(count >= 0 && count <= 3, "no more sequences than there is room for");
    for (int32_t i = 0; i < count; ++i) use(world, sequences[i]);
    for (int32_t i = 0; i < count; ++i) world.remove(sequences[i]);
  } else {
    require(status == PKV_DATA_LOSS || status == PKV_FAILED_PRECONDITION ||
                status == PKV_RESOURCE_EXHAUSTED,
            "a file is refused with a code for files");
    require(count == 0, "a refused file gives no sequences");
    require_text(pkv_last_error());
  }
  require(world.stats().sequences == 1, "only the cache's own sequence is left");
  require(setup().content() == setup().before, "the cache's own sequence is as it was");
}

}  // namespace pkv::fuzz
