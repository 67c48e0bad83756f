#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

namespace llamesh {

/// Runs a function several times side by side on the calling thread, each on a stack of its own:
/// one runs until it meets the others, then comes the next one's turn. The order is always the
/// same.
class Turns {
 public:
  explicit Turns(int count);
  ~Turns();
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;

  int count() const { return static_cast<int>(strands_.size()); }
  /// Calls body(i) for all i in [0, count()). If one throws, the others end where they meet next,
  /// and the exception is rethrown.
  void run(const std::function<void(int turn)>& body);
  /// Once another body has failed, a meeting throws to end this one, but not in a destructor: then
  /// the body ends at the next.
  enum class IfFailed : bool { throws, returns };
  /// Called in the body, equally often by all: calls `first` if it is there, and returns once all
  /// have come.
  void meet(const std::function<void()>& first, IfFailed if_failed = IfFailed::throws);

 private:
  class Strand;
  void run_body();

  std::vector<std::unique_ptr<Strand>> strands_;
  int current_ = 0;
  const std::function<void(int)>* body_ = nullptr;
  std::exception_ptr failed_;
};

}  // namespace llamesh
