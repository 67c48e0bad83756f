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

/// A traced action by a thread in this process. Times are nanoseconds since 1970 by this host's
/// clock.
struct TraceEvent {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t asked = 0;   ///< time when a collective was requested; 0: not a collective
  std::int64_t bytes = 0;   ///< size of a collective or copy; 0: unknown
  std::int64_t number = 0;  ///< collective's number, as in the flight record
  int thread = 0;           ///< thread in this process, in order of first trace
  /// Stream that does the work: "shard". Empty: the thread's own, or "compute" on the tracing
  /// thread.
  std::array<char, 24> lane{};
  std::array<char, 16> category{};  ///< "collective", "pass", "kernel", "wait", "copy", "step"
  std::array<char, 40> name{};      ///< "all-gather", "forward"
  std::array<char, 80> subject{};   ///< unit, module or purpose: "layers.3", or what it waits for
  std::array<char, 24> axis{};      ///< used or waited for
};

/// Returns name and subject: "forward layers.3.self_attn".
std::string title_of(const TraceEvent& event);

/// Copies `text`, truncated to the field's size.
template <std::size_t n>
void set_text(std::array<char, n>& field, std::string_view text) {
  field.fill('\0');
  text.copy(field.data(), n - 1);
}

/// Recorder for this process's actions during profiled steps. While it is off, a caller pays one
/// branch. Any thread may use it, except that start(), open() and close() belong to the compute
/// thread.
class Trace {
 public:
  static constexpr std::size_t max_events = 200'000;  ///< 46 MB; later ones are lost

  static Trace& instance();
  static bool on() { return on_.load(std::memory_order_relaxed); }
  /// Returns nanoseconds since 1970.
  static std::int64_t now();

  /// Records events from here to stop(), after any earlier ones. Omits events already in progress.
  /// The calling thread is the compute thread.
  void start();
  void stop();
  /// Adds a finished event by the calling thread.
  void add(TraceEvent event);
  /// Opens an event on the calling thread that lasts until close(); they nest.
  void open(std::string_view category, std::string_view name, std::string_view subject);
  void close();
  /// Returns the calling thread's newest event.
  static const TraceEvent& newest();

  /// Callbacks that show ranges in a profiler's timeline, such as NVTX. push() and pop() nest per
  /// thread.
  struct Ranges {
    void (*push)(const char* title);
    void (*pop)();
  };
  /// From the next start() on, also shows every open() and every TraceRange as a range there.
  static void show_ranges_in(const Ranges& ranges) { ranges_ = &ranges; }
  static const Ranges* ranges() { return ranges_; }

  struct Recording {
    std::vector<TraceEvent> events;  ///< per thread in order of completion
    std::int64_t lost = 0;           ///< dropped for lack of space
    int compute_thread = 0;          ///< the thread that called start()
  };
  /// Returns the recording and clears it.
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

/// Scope that shows a range in Trace::ranges(); records no event.
class TraceRange {
 public:
  /// Title: "all-gather layers.3 along shard"; empty parts are omitted.
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

/// Scope that records an event. The texts must outlive it.
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

  /// Returns the event, to fill in details; null if tracing is off.
  TraceEvent* event() { return event_ ? &*event_ : nullptr; }

 private:
  void begin(const char* category, const char* name);
  std::optional<TraceEvent> event_;
};

}  // namespace llamesh
