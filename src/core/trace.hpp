#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh {

/// Something that a thread of this process did while it was traced. Times are nanoseconds since
/// 1970, by this host's clock.
struct TraceEvent {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t asked = 0;   ///< a collective was asked for; 0: not one
  std::int64_t bytes = 0;   ///< that a collective or a copy is of; 0: unknown
  std::int64_t number = 0;  ///< of a collective, as in the flight record
  int thread = 0;           ///< of this process, in the order in which they were first traced
  /// The stream whose work it is: "shard". Empty: the thread's own, "compute" on that which traces.
  std::array<char, 24> lane{};
  std::array<char, 16> category{};  ///< "collective", "pass", "kernel", "wait", "copy", "step"
  std::array<char, 40> name{};      ///< "all-gather", "forward"
  std::array<char, 80>
      subject{};                ///< the unit, module or purpose: "layers.3", or what it waits for
  std::array<char, 24> axis{};  ///< that is used or waited for
};

/// "forward layers.3.self_attn": its name and its subject.
std::string title_of(const TraceEvent& event);

/// Cuts `text` to the field's room.
template <std::size_t n>
void set_text(std::array<char, n>& field, std::string_view text) {
  field.fill('\0');
  text.copy(field.data(), n - 1);
}

/// What this process does in the steps that are profiled. While it is off, a caller pays one
/// branch. Any thread, but for start(), open() and close(), which are those of the thread that
/// computes.
class Trace {
 public:
  static constexpr std::size_t most_events = 200'000;  ///< 46 MB; those that come later are lost

  static Trace& instance();
  static bool on() { return on_.load(std::memory_order_relaxed); }
  /// Nanoseconds since 1970.
  static std::int64_t now();

  /// From here to stop() events are recorded, after those that there are. What has begun before is
  /// left out. The calling thread is the one that computes.
  void start();
  void stop();
  /// Takes an event that has ended, of the calling thread.
  void add(TraceEvent event);
  /// An event of the calling thread that goes on until close(); they nest.
  void open(std::string_view category, std::string_view name, std::string_view subject);
  void close();
  /// The newest event of the calling thread.
  static const TraceEvent& newest();

  /// What shows ranges in the timeline of a profiler, as NVTX does: push() and pop() of a thread
  /// nest.
  struct Ranges {
    void (*push)(const char* title);
    void (*pop)();
  };
  /// From the next start() on, what is opened and every TraceRange is a range there too.
  static void show_ranges_in(const Ranges& ranges) { ranges_ = &ranges; }
  static const Ranges* ranges() { return ranges_; }

  struct Recording {
    std::vector<TraceEvent> events;  ///< by thread in the order in which they ended
    std::int64_t lost = 0;           ///< for which there was no room
    int compute_thread = 0;          ///< that which has called start()
  };
  /// What has been recorded; nothing is kept.
  Recording take();

  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

 private:
  Trace();
  static inline std::atomic<bool> on_{false};
  static inline std::atomic<const Ranges*> ranges_{nullptr};
  struct State;
  std::unique_ptr<State> state_;
};

/// A range of Trace::ranges() for as long as it lives, and no event.
class TraceRange {
 public:
  /// "all-gather layers.3 along shard"; without what is empty.
  TraceRange(std::string_view name, std::string_view subject, std::string_view axis) {
    if (Trace::on() && Trace::ranges() != nullptr) push(name, subject, axis);
  }
  ~TraceRange() {
    if (ranges_ != nullptr) ranges_->pop();
  }
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;

 private:
  void push(std::string_view name, std::string_view subject, std::string_view axis);
  const Trace::Ranges* ranges_ = nullptr;
};

/// An event for as long as it lives. The texts outlive it.
class TraceScope {
 public:
  TraceScope(const char* category, const char* name) {
    if (Trace::on()) begin(category, name);
  }
  ~TraceScope() {
    if (event_) Trace::instance().add(*event_);
  }
  TraceScope(const TraceScope&) = delete;
  TraceScope& operator=(const TraceScope&) = delete;

  /// The event, to add to it; null while nothing is traced.
  TraceEvent* event() { return event_ ? &*event_ : nullptr; }

 private:
  void begin(const char* category, const char* name);
  std::optional<TraceEvent> event_;
};

}  // namespace llamesh
