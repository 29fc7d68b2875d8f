// Every file call of save and load failing, once and from then on; and power cut at every point of
// a save.
#include <cerrno>
#include <map>

#include "tests/faults/world.h"

namespace pkv::faults {
namespace {

// A cache with two sequences to save, and one that files are loaded into.
struct Setup {
  Setup() : machine("cpu"), saved(machine, small_shape()), used(machine, small_shape()) {
    saved.append_all(saved.add(), tokens_from(1, 70));
    saved.append_all(saved.add(), tokens_from(500, 9));
    used.append_all(used.add(), tokens_from(70, 60));
    old_world();
  }
  pkv_status save(const std::string& path, uint32_t flags = PKV_SAVE_OVERWRITE) {
    return pkv_cache_save_sync(saved.cache(), saved.stream(), -1, path.c_str(), flags);
  }
  pkv_status load(const std::string& path, std::vector<int32_t>* sequences = nullptr) {
    int32_t slots[4] = {};
    int32_t count = 0;
    const pkv_status status =
        pkv_cache_load_sync(used.cache(), used.stream(), path.c_str(), 4, slots, &count);
    if (sequences != nullptr) sequences->assign(slots, slots + count);
    return status;
  }
  // What a file holds, told by loading it; "" if it is refused.
  std::string content(const std::string& path) {
    std::vector<int32_t> sequences;
    if (load(path, &sequences) != PKV_OK) return "";
    std::string all = std::to_string(sequences.size());
    for (const int32_t sequence : sequences) {
      for (int32_t layer = 0; layer < 2; ++layer) all += used.content_of(layer, sequence);
      used.remove(sequence);
    }
    return all;
  }
  // A file of another content that saves replace.
  void old_world() {
    World other(machine, small_shape());
    other.append_all(other.add(), tokens_from(900, 40));
    const std::string path = folder.file("old.pkv");
    check(pkv_cache_save_sync(other.cache(), other.stream(), -1, path.c_str(), 0));
    old_bytes = read_file(path);
    old_content = content(path);
    check(save(path));
    new_content = content(path);
    folder.clear();
    REQUIRE(!old_content.empty());
    REQUIRE(old_content != new_content);
  }

  Machine machine;
  World saved, used;
  const Folder folder;
  std::string old_bytes, old_content, new_content;
};

constexpr int kErrors[] = {EIO, ENOSPC, EINTR, 0};

TEST_CASE("faults: each file call of a save failing leaves the old file, or the new one, whole") {
  Setup setup;
  const std::string path = setup.folder.file("cache.pkv");
  const std::string state = state_of(setup.saved);
  int made = 0, refused = 0;
  for (const bool has_old : {true, false}) {
    for (const Call call : kCalls) {
      for (const int error : kErrors) {
        // Only reads and writes have halves and are asked again after a signal.
        const bool is_transfer = call == Call::kWrite || call == Call::kRead;
        if (!is_transfer && (error == 0 || error == EINTR)) continue;
        for (const bool lasts : {false, true}) {
          if (lasts && error == EINTR) continue;  // a signal at every try ends nothing
          for (int64_t at = 1;; ++at) {
            CAPTURE(std::string(kCallNames[static_cast<int>(call)]));
            CAPTURE(error);
            CAPTURE(lasts);
            CAPTURE(at);
            setup.folder.clear();
            if (has_old) write_file(path, setup.old_bytes);
            const Fault fault = {call, at, lasts, error};
            begin_files(&fault);
            const pkv_status status = setup.save(path, has_old ? uint32_t{PKV_SAVE_OVERWRITE} : 0U);
            const FileReport report = end_files();
            if (!report.was_made) {
              CHECK(status == PKV_OK);
              break;
            }
            ++made;
            const std::string content = setup.content(path);
            if (status == PKV_OK) {
              CHECK(content == setup.new_content);
            } else {
              ++refused;
              const bool is_known = status == PKV_UNAVAILABLE || status == PKV_RESOURCE_EXHAUSTED;
              CHECK(is_known);
              // A rename that has happened, and then a folder that cannot be flushed: the new file.
              const bool is_old = has_old ? content == setup.old_content : content.empty();
              const bool is_new = content == setup.new_content && call == Call::kFlush;
              CHECK((is_old || is_new));
            }
            // Only where unlink fails too could anything else stay behind.
            if (call != Call::kUnlink) {
              const bool is_there = std::filesystem::exists(path);
              CHECK(setup.folder.names().size() == (is_there ? 1U : 0U));
            }
          }
        }
      }
    }
  }
  CHECK(refused > 20);
  CHECK(made > refused);
  CHECK(state_of(setup.saved) == state);
  check(setup.save(path));
  CHECK(setup.content(path) == setup.new_content);
  MESSAGE(made, " faults made, ", refused, " saves refused");
}

TEST_CASE("faults: each file call of a load failing leaves the cache as it was") {
  Setup setup;
  const std::string path = setup.folder.file("cache.pkv");
  check(setup.save(path));
  const std::string state = state_of(setup.used);
  int refused = 0, made = 0;
  for (const Call call : {Call::kOpen, Call::kRead, Call::kClose}) {
    for (const int error : kErrors) {
      const bool is_transfer = call == Call::kRead;
      if (!is_transfer && (error == 0 || error == EINTR)) continue;
      for (const bool lasts : {false, true}) {
        if (lasts && error == EINTR) continue;
        for (int64_t at = 1;; ++at) {
          CAPTURE(std::string(kCallNames[static_cast<int>(call)]));
          CAPTURE(error);
          CAPTURE(lasts);
          CAPTURE(at);
          const Fault fault = {call, at, lasts, error};
          std::vector<int32_t> sequences;
          begin_files(&fault);
          const pkv_status status = setup.load(path, &sequences);
          const FileReport report = end_files();
          for (const int32_t sequence : sequences) setup.used.remove(sequence);
          REQUIRE(state_of(setup.used) == state);
          if (!report.was_made) {
            CHECK(status == PKV_OK);
            break;
          }
          ++made;
          if (status == PKV_OK) continue;
          ++refused;
          const bool is_known = status == PKV_UNAVAILABLE || status == PKV_RESOURCE_EXHAUSTED;
          CHECK(is_known);
          CHECK(sequences.empty());
        }
      }
    }
  }
  CHECK(refused > 20);
  CHECK(setup.content(path) == setup.new_content);
  MESSAGE(made, " faults made, ", refused, " loads refused");
}

// What a disk may hold after a power cut behind `count` events: of writes that no fsync followed,
// all, none, or those of every second event; of the last rename, done or not unless a folder was
// flushed behind it.
enum class Kept { kAll, kNone, kSome };

std::map<std::string, std::string> disk_after(const std::vector<Event>& events, std::size_t count,
                                              Kept kept, bool keeps_rename,
                                              std::map<std::string, std::string> disk) {
  const auto is_flushed = [&](std::size_t from, const std::string& path) {
    for (std::size_t i = from; i < count; ++i) {
      if (events[i].call == Call::kFlush && events[i].path == path) return true;
    }
    return false;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const Event& event = events[i];
    const bool is_kept =
        kept == Kept::kAll || is_flushed(i, event.path) || (kept == Kept::kSome && i % 2 == 0);
    switch (event.call) {
      case Call::kOpen: disk[event.path]; break;
      case Call::kWrite: {
        if (!is_kept) break;
        std::string& file = disk[event.path];
        const auto end = static_cast<std::size_t>(event.offset) + event.bytes.size();
        if (file.size() < end) file.resize(end, '\0');
        file.replace(static_cast<std::size_t>(event.offset), event.bytes.size(), event.bytes);
        break;
      }
      case Call::kTruncate:
        if (is_kept) disk[event.path].resize(static_cast<std::size_t>(event.offset), '\0');
        break;
      case Call::kRename: {
        const std::string folder = event.other.substr(0, event.other.rfind('/'));
        if (!keeps_rename && !is_flushed(i, folder)) break;
        disk[event.other] = disk[event.path];
        disk.erase(event.path);
        break;
      }
      case Call::kUnlink: disk.erase(event.path); break;
      default: break;
    }
  }
  return disk;
}

TEST_CASE("faults: power cut at any point of a save, the file is the old one or the new one") {
  Setup setup;
  const std::string path = setup.folder.file("cache.pkv");
  int64_t disks = 0, old_ones = 0, new_ones = 0;
  for (const bool has_old : {true, false}) {
    setup.folder.clear();
    std::map<std::string, std::string> before;
    if (has_old) {
      write_file(path, setup.old_bytes);
      before[path] = setup.old_bytes;
    }
    begin_files(nullptr);
    check(setup.save(path, has_old ? uint32_t{PKV_SAVE_OVERWRITE} : 0U));
    const std::vector<Event> events = end_files().events;
    REQUIRE(events.size() > 10);
    for (std::size_t count = 0; count <= events.size(); ++count) {
      for (const Kept kept : {Kept::kAll, Kept::kNone, Kept::kSome}) {
        for (const bool keeps_rename : {true, false}) {
          CAPTURE(count);
          const auto disk = disk_after(events, count, kept, keeps_rename, before);
          setup.folder.clear();
          for (const auto& [name, bytes] : disk) write_file(name, bytes);
          ++disks;
          const bool is_there = disk.contains(path);
          const std::string content = is_there ? setup.content(path) : "";
          const bool is_old = has_old ? content == setup.old_content : !is_there;
          const bool is_new = content == setup.new_content;
          CHECK((is_old || is_new));
          (is_new ? new_ones : old_ones) += 1;
          // Once the call has returned the new file is there for good.
          if (count == events.size()) CHECK(is_new);
        }
      }
    }
  }
  CHECK(old_ones > 20);
  CHECK(new_ones > 5);
  MESSAGE(disks, " disks: ", old_ones, " with the old file, ", new_ones, " with the new one");
}

}  // namespace
}  // namespace pkv::faults
