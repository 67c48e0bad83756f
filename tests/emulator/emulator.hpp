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

/// Runs CUDA kernels written against ops/cuda/device_code.cuh on the CPU, one block after another
/// on the calling thread, the threads of a block as fibers. It is for finding mistakes, not for
/// speed:
///
/// - A thread runs until it waits, then the next one of its warp does, and a warp goes on until all
///   of it waits at a barrier. Every other block runs in reverse order. So what lacks a barrier
///   fails in one of them.
/// - Shared memory starts as NaNs, and so does the target of an asynchronous copy from the moment
///   when it is issued; the bytes arrive when the thread waits for them.
/// - A product of a warpgroup takes its factors when it is issued, and its sums are NaNs until it
///   has been waited for. Then its factors must still be the same, and must have been shown to it.
/// - Two accesses that only the emulator orders, one of them a write, are an error (RaceDetector),
///   for kernels that are compiled with -fsanitize=thread.
/// - Accesses through the 16-byte helpers must be aligned, those of shared memory within bounds; a
///   write just beyond the block's shared memory is noticed at its end.
/// - A barrier that a thread has left, and a warp whose lanes do different things, are errors.
namespace llamesh::emulator {

/// Shared memory that a block can have: a Hopper's, unless a test plays another GPU.
inline std::int64_t max_shared_bytes = std::int64_t{227} * 1024;

/// Whether launches look for races, which makes them slower.
inline bool looks_for_races = true;

inline constexpr int warp_size = 32;

struct Index {
  int x = 0, y = 0, z = 0;
};

/// Puts work into a stream of a GPU, where a program plays one (tests/fake_cuda); streams of the
/// CPU take it themselves.
inline void (*put_into_gpu_stream)(device::Stream& stream, std::function<void()> work) = nullptr;

/// What a warp does together. The lane that comes last performs it for all.
enum class Together { nothing, sync, shuffle, load_matrix, multiply, products };

/// One block and what is going on in it.
class Block {
 public:
  static constexpr int max_threads = 1024;

  /// The one that this thread runs.
  static Block& current();

  /// Runs `kernel` once for each thread of each block of the grid; rethrows what one of them
  /// throws.
  void run(Index grid, int threads, std::int64_t shared_bytes, const std::function<void()>& kernel);

  int thread() const { return at_; }
  int threads() const { return threads_; }
  Index index() const { return index_; }
  Index grid() const { return grid_; }

  /// Waits for all threads of the block.
  void sync();
  /// Waits for all lanes of the warp; the last one calls perform(arguments of the 32 lanes).
  void together(Together what, void* argument, void (*perform)(void* const* lanes));

  std::byte* shared() { return shared_.data() + guard; }
  /// Throws unless `bytes` at `offset` lie within shared memory, aligned to `alignment`.
  void check_shared(std::int64_t offset, std::int64_t bytes, std::int64_t alignment) const;

  /// Notes that this thread reads or writes memory by other ways than its own pointers.
  void reads(const void* at, std::int64_t bytes);
  void writes(const void* at, std::int64_t bytes);

  /// Starts a copy into shared memory (of zeros where `from` is null).
  void copy_async(std::int64_t offset, const void* from, std::int64_t bytes);
  void commit_copies();
  /// All but the last `open` groups of this thread arrive.
  void wait_copies(int open);

  /// Notes that this thread wrote what products may not read until it is shown to them.
  void hide_from_products(std::int64_t offset, std::int64_t bytes);
  /// What this thread wrote until now may be read by products.
  void fence_proxy_async();
  /// A product reads there. Throws unless all that was written there has been shown by who wrote
  /// it.
  void check_shown(std::int64_t offset, std::int64_t bytes);

  /// Products of the warp that runs: work that is done when its group is waited for.
  void start_product(std::function<void()> finish);
  void wgmma_commit_group();
  /// All but the last `open` groups of the warp end.
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
  std::uint32_t blocks_ = 0, barriers_ = 0;  // of the launch and of the block, so far
  RaceDetector races_;
  std::int64_t shared_bytes_ = 0;
  const std::function<void()>* kernel_ = nullptr;
  std::exception_ptr error_;
  std::vector<std::byte> shared_;
  std::vector<bool> hidden_;  // words of shared memory that products may not read yet
  std::vector<std::unique_ptr<Thread>> pool_;
  std::vector<Warp> warps_;
  Fiber main_;
};

}  // namespace llamesh::emulator
