#include "core/trace.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>

namespace llamesh {
namespace {

std::string text_of(const auto& field) {
  return field.data();
}

TEST(Trace, RecordsNothingWhileItIsOff) {
  {
    TraceScope scope("kernel", "before");
    EXPECT_EQ(scope.event(), nullptr);
  }
  Trace::instance().start();
  Trace::instance().stop();
  { const TraceScope scope("kernel", "after"); }
  EXPECT_TRUE(Trace::instance().take().events.empty());
}

TEST(Trace, ScopesNestAndThreadsAreApart) {
  auto& trace = Trace::instance();
  trace.start();
  trace.open("pass", "forward", "layers.3");
  { const TraceScope scope("kernel", "attention"); }
  std::thread([] {
    TraceScope scope("copy", "to device");
    set_text(scope.event()->lane, "copies");
  }).join();
  trace.close();
  trace.close();  // one too many
  trace.stop();
  const auto [events, lost, compute] = trace.take();
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(lost, 0);
  const auto& [kernel, copy, pass] = std::tie(events[0], events[1], events[2]);
  EXPECT_EQ(text_of(kernel.name), "attention");
  EXPECT_EQ(text_of(pass.name) + ' ' + text_of(pass.subject), "forward layers.3");
  EXPECT_EQ(text_of(copy.lane), "copies");
  EXPECT_EQ(kernel.thread, compute);
  EXPECT_EQ(pass.thread, compute);
  EXPECT_NE(copy.thread, compute);
  EXPECT_LE(pass.start, kernel.start);
  EXPECT_LE(kernel.start, kernel.end);
  EXPECT_LE(kernel.end, copy.start);
  EXPECT_LE(copy.end, pass.end);
  EXPECT_TRUE(trace.take().events.empty());
}

std::string said;  // by the profiler

TEST(Trace, ShowsRangesInAProfilerWhileItIsOn) {
  static constexpr Trace::Ranges profiler{
      [](const char* title) { said += title + std::string("("); }, [] { said += ")"; }};
  Trace::show_ranges_in(profiler);
  auto& trace = Trace::instance();
  { const TraceRange before("all-gather", "layers.1", "shard"); }
  {
    trace.start();
    trace.open("step", "step", "7");
    trace.open("pass", "forward", "layers.3");
    { const TraceRange range("all-gather", "layers.4", "shard"); }
    { const TraceRange range("barrier", "", ""); }
    trace.close();
    trace.close();
    const TraceRange longer("all-gather", "layers.5", "");
    trace.stop();
  }
  EXPECT_EQ(said,
            "step 7(forward layers.3(all-gather layers.4 along shard()barrier()))"
            "all-gather layers.5()");
  EXPECT_EQ(trace.take().events.size(), 2U);
}

TEST(Trace, LeavesOutWhatBeganBeforeItOrEndsAfterIt) {
  auto& trace = Trace::instance();
  TraceEvent early;
  early.start = Trace::now();
  trace.start();
  trace.add(early);
  {
    const TraceScope scope("kernel", "late");
    trace.stop();
  }
  EXPECT_TRUE(trace.take().events.empty());
}

TEST(Trace, KeepsTheFirstEventsAndCountsTheOthers) {
  auto& trace = Trace::instance();
  trace.start();
  for (std::size_t i = 0; i < Trace::max_events + 3; ++i) const TraceScope scope("kernel", "add");
  trace.stop();
  const auto recording = trace.take();
  EXPECT_EQ(recording.events.size(), Trace::max_events);
  EXPECT_EQ(recording.lost, 3);
}

TEST(Trace, CutsTextsToTheirRoom) {
  TraceEvent event;
  set_text(event.category, std::string(100, 'x'));
  EXPECT_EQ(text_of(event.category), std::string(event.category.size() - 1, 'x'));
  set_text(event.category, "wait");
  EXPECT_EQ(text_of(event.category), "wait");
}

}  // namespace
}  // namespace llamesh
