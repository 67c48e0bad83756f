#include "core/mapped_range.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <mutex>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/process.hpp"

namespace llamesh {

/// Read by the handler at any time, so it is reused but never freed.
struct MappedRange::Entry {
  std::atomic<std::uintptr_t> begin{0};
  std::atomic<std::uintptr_t> end{0};  ///< 0: unused
  std::atomic<Kind> kind{};
  std::atomic<std::int64_t> lost_at{-1};
  Entry* next = nullptr;
};

namespace {

using Entry = MappedRange::Entry;

std::atomic<Entry*> entries{nullptr};
std::mutex free_mutex;

std::vector<Entry*>& free_entries() {
  static std::vector<Entry*> entries_of_no_range;
  return entries_of_no_range;
}

Entry* entry_at(std::uintptr_t address) {
  for (Entry* entry = entries.load(); entry != nullptr; entry = entry->next)
    if (address >= entry->begin.load() && address < entry->end.load()) return entry;
  return nullptr;
}

void print_from_handler(std::string_view what) {
  std::array<char, 512> line{};
  const auto& self = this_process();
  const auto end = fmt::format_to_n(line.data(), line.size(), "llamesh: rank {} on {}: {}\n",
                                    self.rank, self.host.c_str(), what)
                       .out;
  static_cast<void>(
      !write(STDERR_FILENO, line.data(), static_cast<std::size_t>(end - line.data())));
}

/// Maps zeros in place of the missing pages, up to the end of the range.
bool put_zeros(Entry& entry, std::uintptr_t address) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = address / page * page;
  std::int64_t none = -1;
  entry.lost_at.compare_exchange_strong(
      none, static_cast<std::int64_t>(std::max(first, entry.begin.load()) - entry.begin.load()));
  return mmap(reinterpret_cast<void*>(first), entry.end.load() - first, PROT_READ,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  Entry* entry = entry_at(address);
  if (entry != nullptr && entry->kind.load() == MappedRange::Kind::file &&
      put_zeros(*entry, address))
    return;
  if (entry != nullptr && entry->kind.load() == MappedRange::Kind::shared_memory) {
    print_from_handler(
        "no room left for the memory that the ranks of a node share (/dev/shm); enlarge it (mount "
        "-o remount,size=...), or use more nodes or smaller units");
    _exit(static_cast<int>(ExitCode::bad_input));
  }
  print_from_handler(
      "bus error: a mapped file was cut off, or a file system in memory (/dev/shm) is full");
  std::signal(signal, SIG_DFL);  // the same access now ends the process
}

void handle_bus_errors() {
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  expects(sigaction(SIGBUS, &action, nullptr) == 0, "SIGBUS cannot be handled");
  this_process();  // initialized here rather than in the handler
}

Entry& take_entry() {
  static std::once_flag once;
  std::call_once(once, handle_bus_errors);
  const std::scoped_lock lock(free_mutex);
  if (!free_entries().empty()) {
    Entry* entry = free_entries().back();
    free_entries().pop_back();
    return *entry;
  }
  auto* entry = new Entry;
  entry->next = entries.load();
  entries.store(entry);
  return *entry;
}

}  // namespace

MappedRange::MappedRange(std::span<const std::byte> bytes, Kind kind) : entry_(take_entry()) {
  entry_.kind = kind;
  entry_.lost_at = -1;
  entry_.begin = reinterpret_cast<std::uintptr_t>(bytes.data());
  entry_.end = entry_.begin + bytes.size();
}

MappedRange::~MappedRange() {
  entry_.end = 0;
  const std::scoped_lock lock(free_mutex);
  free_entries().push_back(&entry_);
}

std::int64_t MappedRange::lost_at() const noexcept {
  return entry_.lost_at.load(std::memory_order_relaxed);
}

}  // namespace llamesh
