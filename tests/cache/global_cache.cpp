// A cache in a global object, in use when main returns and never destroyed by hand: the program
// must end with 0 and print nothing.
#include <memory>

#include "tests/model/world.h"

namespace {

// Destroyed after main, in reverse order: first the cache, then what it was made on.
std::unique_ptr<pkv::cache_model::Machine> machine;
std::unique_ptr<pkv::cache_model::World> world;
pkv_cache* left_alone = nullptr;  // destroyed by nobody

}  // namespace

int main() {
  using namespace pkv::cache_model;
  Shape shape;
  shape.options = {{"k", "12"}};
  machine = std::make_unique<Machine>("cpu");
  world = std::make_unique<World>(*machine, shape);
  const int32_t sequence = world->add();
  std::vector<uint64_t> tokens;
  for (uint64_t i = 1; i <= 300; ++i) tokens.push_back(i);
  world->append_all(sequence, tokens);
  Attended attended;
  pkv::check(world->decode_step(0, {{sequence, {5000}}}, 0, attended));
  const Desc desc(shape);
  pkv::check(pkv_cache_create(machine->device.get(), world->config().get(), &desc.c, &left_alone));
  return 0;
}
