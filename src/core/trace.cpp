#include "core/trace.hpp"

#include <fmt/format.h>

#include <chrono>
#include <mutex>
#include <utility>

namespace llamesh {
namespace {

int this_thread() {
  static std::atomic<int> threads{0};
  static thread_local const int number = threads++;
  return number;
}

thread_local TraceEvent newest_of_thread;

}  // namespace

std::string title_of(const TraceEvent& event) {
  std::string title = event.name.data();
  if (event.subject.front() != '\0') title.append(" ").append(event.subject.data());
  return title;
}

struct Trace::State {
  std::mutex mutex;
  Recording recording;
  std::int64_t since = 0;        // earlier events are ignored
  std::vector<TraceEvent> open;  // on the compute thread
};

Trace::Trace() : state_(std::make_unique<State>()) {}

Trace& Trace::instance() {
  // Never destroyed: threads may add events until the process ends.
  static auto* const of_this_process = new Trace();
  return *of_this_process;
}

std::int64_t Trace::now() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

void Trace::start() {
  const std::lock_guard lock(state_->mutex);
  state_->recording.compute_thread = this_thread();
  state_->since = now();
  state_->open.clear();
  on_ = true;
}

void Trace::stop() {
  const std::lock_guard lock(state_->mutex);
  on_ = false;
}

void Trace::add(TraceEvent event) {
  if (event.end == 0) event.end = now();
  event.thread = this_thread();
  newest_of_thread = event;
  const std::lock_guard lock(state_->mutex);
  auto& [events, lost, compute_thread] = state_->recording;
  if (!on() || event.start < state_->since) return;
  if (events.size() < max_events)
    events.push_back(event);
  else
    ++lost;
}

void Trace::open(std::string_view category, std::string_view name, std::string_view subject) {
  TraceEvent event;
  set_text(event.category, category);
  set_text(event.name, name);
  set_text(event.subject, subject);
  event.start = now();
  if (const Ranges* const shown = ranges()) shown->push(title_of(event).c_str());
  const std::lock_guard lock(state_->mutex);
  state_->open.push_back(event);
}

void Trace::close() {
  TraceEvent event;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->open.empty()) return;
    event = state_->open.back();
    state_->open.pop_back();
  }
  if (const Ranges* const shown = ranges()) shown->pop();
  add(event);
}

void TraceRange::push(std::string_view name, std::string_view subject, std::string_view axis) {
  ranges_ = Trace::ranges();
  ranges_->push(fmt::format("{}{}{}{}{}", name, subject.empty() ? "" : " ", subject,
                            axis.empty() ? "" : " along ", axis)
                    .c_str());
}

void TraceScope::begin(const char* category, const char* name) {
  auto& event = event_.emplace();
  set_text(event.category, category);
  set_text(event.name, name);
  event.start = Trace::now();
}

const TraceEvent& Trace::newest() {
  return newest_of_thread;
}

Trace::Recording Trace::take() {
  const std::lock_guard lock(state_->mutex);
  return std::exchange(state_->recording, {});
}

}  // namespace llamesh
