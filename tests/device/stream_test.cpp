#include "device/stream.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/trace.hpp"

namespace llamesh::device {
namespace {

using namespace std::chrono_literals;

/// Work that blocks its stream until the test opens the gate.
class Gate {
 public:
  auto work() {
    return [opened = opened_] { opened.wait(); };
  }
  void open() { promise_.set_value(); }

 private:
  std::promise<void> promise_;
  std::shared_future<void> opened_{promise_.get_future()};
};

/// Returns the error text that waiting for the event throws; empty if none.
std::string error_of(const Event& event) {
  try {
    event.wait();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(Worker, DoesItsWorkInOrder) {
  auto stream = Stream::worker();
  std::vector<int> order;
  for (int i = 0; i < 1000; ++i) stream.run([&order, i] { order.push_back(i); });
  stream.record().wait();
  ASSERT_EQ(order.size(), 1000U);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(Worker, IsAThreadOfItsOwn) {
  auto stream = Stream::worker();
  auto worker = std::this_thread::get_id();
  stream.run([&] { worker = std::this_thread::get_id(); });
  stream.record().wait();
  EXPECT_NE(worker, std::this_thread::get_id());
}

TEST(Worker, RunReturnsBeforeTheWorkIsDone) {
  Gate gate;
  std::atomic<bool> done{false};
  auto stream = Stream::worker();
  stream.run(gate.work());
  stream.run([&] { done = true; });
  const Event end = stream.record();
  EXPECT_FALSE(done);
  EXPECT_FALSE(end.ready());
  gate.open();
  end.wait();
  EXPECT_TRUE(done);
  EXPECT_TRUE(end.ready());
}

TEST(Worker, FinishesItsWorkBeforeItIsDestroyed) {
  std::atomic<int> done{0};
  {
    auto stream = Stream::worker();
    stream.run([] { std::this_thread::sleep_for(10ms); });
    for (int i = 0; i < 10; ++i) stream.run([&] { ++done; });
  }
  EXPECT_EQ(done, 10);
}

TEST(Worker, StaysTheSameWhenItIsMoved) {
  Gate gate;
  std::vector<int> order;
  auto first = Stream::worker();
  first.run(gate.work());
  first.run([&] { order.push_back(1); });
  Stream second = std::move(first);
  second.run([&] { order.push_back(2); });
  gate.open();
  second.record().wait();
  EXPECT_EQ(order, (std::vector{1, 2}));
}

TEST(Event, ThatIsDefaultHasHappened) {
  const Event event;
  EXPECT_TRUE(event.ready());
  event.wait();
  auto stream = Stream::worker();
  stream.wait(event);
  stream.record().wait();
}

TEST(Event, StandsForTheWorkBeforeItOnly) {
  Gate gate;
  std::atomic<bool> before{false};
  auto stream = Stream::worker();
  stream.run([&] { before = true; });
  const Event middle = stream.record();
  const Event copy = middle;  // NOLINT(performance-unnecessary-copy-initialization)
  stream.run(gate.work());
  const Event end = stream.record();
  middle.wait();
  EXPECT_TRUE(before);
  EXPECT_TRUE(copy.ready());
  EXPECT_FALSE(end.ready());
  gate.open();
}

TEST(Event, OfOneStreamHoldsAnother) {
  Gate gate;
  std::atomic<int> value{0};
  auto producer = Stream::worker();
  auto consumer = Stream::worker();
  producer.run(gate.work());
  producer.run([&] { value = 7; });
  consumer.wait(producer.record());
  int seen = 0;
  consumer.run([&] { seen = value; });
  const Event consumed = consumer.record();
  std::this_thread::sleep_for(5ms);  // a consumer that does not wait would have read by now
  EXPECT_FALSE(consumed.ready());
  gate.open();
  consumed.wait();
  EXPECT_EQ(seen, 7);
}

TEST(Event, ThatTheCallingThreadWaitsForIsTraced) {
  auto& trace = Trace::instance();
  std::vector<TraceEvent> waits;
  for (auto time = 10ms; waits.empty() && time < 5s; time *= 2) {  // this thread may come too late
    trace.start();
    auto worker = Stream::worker();
    worker.run([time] {
      TraceScope scope("copy", "to device");
      if (auto* event = scope.event()) set_text(event->lane, "copies");
      std::this_thread::sleep_for(time);
    });
    auto calling = Stream::calling_thread();
    calling.wait(worker.record());
    trace.stop();
    for (const TraceEvent& event : trace.take().events)
      if (std::string(event.category.data()) == "wait") waits.push_back(event);
  }
  ASSERT_EQ(waits.size(), 1U);
  EXPECT_STREQ(waits.front().axis.data(), "copies");
  EXPECT_STREQ(waits.front().subject.data(), "to device ");
}

TEST(Event, OutlivesItsStream) {
  Event event;
  {
    auto stream = Stream::worker();
    event = stream.record();
  }
  EXPECT_TRUE(event.ready());
  event.wait();
}

TEST(Error, SurfacesAtWhoeverWaitsAndSkipsLaterWork) {
  bool later = false;
  auto stream = Stream::worker();
  const Event before = stream.record();
  stream.run([] { throw std::runtime_error("the network is down"); });
  const Event after = stream.record();
  stream.run([&] { later = true; });
  stream.run([] { throw std::runtime_error("a second error"); });
  const Event end = stream.record();
  EXPECT_EQ(error_of(before), "");
  EXPECT_EQ(error_of(after), "the network is down");
  EXPECT_EQ(error_of(end), "the network is down");
  EXPECT_EQ(error_of(end), "the network is down") << "when it is waited for once more";
  EXPECT_TRUE(end.ready());
  EXPECT_FALSE(later);
}

TEST(Error, PassesToTheStreamsThatWaitForIt) {
  bool used = false;
  auto producer = Stream::worker();
  auto consumer = Stream::worker();
  producer.run([] { throw std::runtime_error("no data"); });
  consumer.wait(producer.record());
  consumer.run([&] { used = true; });
  EXPECT_EQ(error_of(consumer.record()), "no data");
  EXPECT_FALSE(used);
}

TEST(Error, ThatNobodyWaitsForEndsNothing) {
  auto stream = Stream::worker();
  stream.run([] { throw std::runtime_error("nobody asks"); });
}

TEST(CallingThread, RunsAtOnce) {
  auto stream = Stream::calling_thread();
  std::thread::id ran_on;
  stream.run([&] { ran_on = std::this_thread::get_id(); });
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  EXPECT_TRUE(stream.record().ready());
}

TEST(CallingThread, ThrowsAtOnce) {
  auto stream = Stream::calling_thread();
  EXPECT_THROW(stream.run([] { throw std::runtime_error("here"); }), std::runtime_error);
  bool later = false;
  stream.run([&] { later = true; });
  EXPECT_TRUE(later) << "whoever saw the error decides what comes next";
}

TEST(CallingThread, WaitsForAnEventOfAWorker) {
  std::atomic<bool> done{false};
  auto worker = Stream::worker();
  worker.run([&] {
    std::this_thread::sleep_for(5ms);
    done = true;
  });
  auto stream = Stream::calling_thread();
  stream.wait(worker.record());
  EXPECT_TRUE(done);
  worker.run([] { throw std::runtime_error("late"); });
  EXPECT_THROW(stream.wait(worker.record()), std::runtime_error);
}

}  // namespace
}  // namespace llamesh::device
