#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "device/stream.hpp"
#include "fiber.hpp"
#include "race_detector.hpp"

/// Runs CUDA kernels written for ops/cuda/device_code.cuh on the CPU, one block after another on
/// the calling thread, with a block's threads as fibers. It is meant to find bugs, not to be fast:
///
/// - A thread runs until it waits; then the next thread in its warp runs. A warp continues until
///   all its threads wait at a barrier. Every other block runs in reverse order. So a missing
///   barrier fails in one of the two orders.
/// - Shared memory starts as NaNs, and so does an asynchronous copy's target once the copy is
///   issued; the bytes arrive when the thread waits for them.
/// - A warpgroup product reads its factors when issued, and its sums are NaNs until waited for. Its
///   factors must not have changed by then, and must have been made visible to it.
/// - Two accesses that only the emulator orders, one of them a write, are an error (RaceDetector),
///   in kernels compiled with -fsanitize=thread.
/// - Accesses through the 16-byte helpers must be aligned, and those in shared memory within
///   bounds. A write just beyond the block's shared memory is detected when the block ends.
/// - A barrier that some thread has exited past, and a warp with diverging lanes, are errors.
namespace llamesh::emulator {

/// Maximum shared memory per block: a Hopper's, unless a test mimics another GPU.
inline std::int64_t max_shared_bytes = std::int64_t{227} * 1024;

/// Enables the race search during launches, which makes them slower.
inline bool looks_for_races = true;

inline constexpr int warp_size = 32;

struct Index {
  int x = 0, y = 0, z = 0;
};

/// Queues work on a GPU stream in programs that mimic one (tests/cuda_fake). CPU streams take the
/// work themselves.
inline void (*put_into_gpu_stream)(device::Stream& stream, std::function<void()> work) = nullptr;

/// Collective operations in a warp. The last lane to arrive performs it for all.
enum class Together { nothing, sync, shuffle, load_matrix, multiply, products };

/// A running block and its state.
class Block {
 public:
  static constexpr int max_threads = 1024;

  /// Returns the block that this thread runs.
  static Block& current();

  /// Runs `kernel` once for each thread in each block in the grid; rethrows an exception from any.
  void run(Index grid, int threads, std::int64_t shared_bytes, const std::function<void()>& kernel);

  int thread() const { return at_; }
  int threads() const { return threads_; }
  Index index() const { return index_; }
  Index grid() const { return grid_; }

  /// Waits for all threads in the block.
  void sync();
  /// Waits for all lanes in the warp; the last one calls perform(arguments from the 32 lanes).
  void together(Together what, void* argument, void (*perform)(void* const* lanes));

  std::byte* shared() { return shared_.data() + guard; }
  /// Throws unless `bytes` at `offset` are within shared memory and aligned to `alignment`.
  void check_shared(std::int64_t offset, std::int64_t bytes, std::int64_t alignment) const;

  /// Records accesses by this thread that do not go through its own pointers.
  void reads(const void* at, std::int64_t bytes);
  void writes(const void* at, std::int64_t bytes);

  /// Starts a copy into shared memory (zeros if `from` is null).
  void copy_async(std::int64_t offset, const void* from, std::int64_t bytes);
  void commit_copies();
  /// Completes all but the last `open` groups from this thread.
  void wait_copies(int open);

  /// Marks writes by this thread that products must not read before a fence.
  void hide_from_products(std::int64_t offset, std::int64_t bytes);
  /// Makes this thread's writes visible to products.
  void fence_proxy_async();
  /// Checks a read by a product: throws unless every write there has been made visible by its
  /// writer.
  void check_shown(std::int64_t offset, std::int64_t bytes);

  /// Issues a product from the running warp; `finish` runs when its group is waited for.
  void start_product(std::function<void()> finish);
  void wgmma_commit_group();
  /// Finishes all but the last `open` groups from the warp.
  void wgmma_wait_group(int open);

 private:
  static constexpr std::int64_t guard = 256;
  enum class State { ready, at_barrier, in_warp, done };
  struct Copy {
    std::int64_t offset;
    const void* from;
    std::int64_t bytes;
  };
  struct Thread {
    Fiber fiber;
    State state = State::done;
    std::vector<Copy> issued;
    std::deque<std::vector<Copy>> groups;
    std::vector<std::pair<std::int64_t, std::int64_t>> hidden;  // first and last word written
  };
  struct Warp {
    Together what = Together::nothing;
    int arrived = 0;
    std::uint32_t barriers = 0;
    std::array<void*, warp_size> arguments{};
    std::vector<std::function<void()>> started;
    std::deque<std::vector<std::function<void()>>> groups;
  };

  static void enter();
  void run_block();
  void leave();
  void go_on();
  int next_ready() const;
  void check_guards() const;
  void watch_thread();

  Index index_, grid_;
  int at_ = 0, threads_ = 0, step_ = 1;
  int waiting_ = 0, done_ = 0;
  std::uint32_t blocks_ = 0, barriers_ = 0;  // so far in the launch and in the block
  RaceDetector races_;
  std::int64_t shared_bytes_ = 0;
  const std::function<void()>* kernel_ = nullptr;
  std::exception_ptr error_;
  std::vector<std::byte> shared_;
  std::vector<bool> hidden_;  // shared-memory words that products may not read yet
  std::vector<std::unique_ptr<Thread>> pool_;
  std::vector<Warp> warps_;
  Fiber main_;
};

}  // namespace llamesh::emulator
