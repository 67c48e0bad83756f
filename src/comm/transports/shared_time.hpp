#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <tuple>
#include <vector>

namespace llamesh::comm {

/// The times of ranks that are simulated side by side, each on its own thread: when one of them has
/// sent something, and when all of them meet.
class SharedTime {
 public:
  explicit SharedTime(int ranks) : ranks_(ranks) {}

  /// One direction between two ranks: the lower one, and two numbers that tell the directions
  /// between them apart.
  using Channel = std::tuple<int, int, int>;

  /// Notes that a channel's next message has left at `time`.
  void send(const Channel& channel, double time);
  /// Returns when its message `number` left. Waits until the sender knows.
  double arrival(const Channel& channel, std::size_t number);
  /// Returns the latest `now` of all ranks. Waits for them.
  double meet(double now);
  /// Ends all waits, now and later, by comm::PeerFailure: a rank has failed.
  void fail();

 private:
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, const Condition& condition);

  int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Channel, std::vector<double>> sent_;
  int met_ = 0;
  std::int64_t meetings_ = 0;
  double latest_ = 0, agreed_ = 0;
  bool failed_ = false;
};

}  // namespace llamesh::comm
