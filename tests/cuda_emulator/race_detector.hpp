#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

/// Detects races in emulated kernels: two accesses to the same memory, one of them a write, that
/// nothing orders on a GPU, whatever order the emulator used. Accesses are ordered
///
/// - if one thread makes both,
/// - within a block by a block barrier between them,
/// - within a warp by a warp barrier between them (shuffles and matrix instructions wait for all
///   lanes, but guarantee nothing about memory),
/// - and by the end of the launch.
///
/// Memory is tracked in pieces of two bytes, the smallest that most kernels share.
namespace llamesh::emulator {

/// Time and thread of an access. Within a block, barrier counts only grow.
class Moment {
 public:
  static constexpr std::uint32_t max_blocks = (1U << 20U) - 2, max_barriers = (1U << 16U) - 1;

  /// Never.
  Moment() = default;
  /// `block` is its number within the launch, from 1.
  Moment(std::uint32_t block, std::uint32_t barriers, std::uint32_t warp_barriers, int thread)
      : bits_(std::uint64_t{block} << 44U | std::uint64_t{barriers} << 28U |
              std::uint64_t{warp_barriers} << 12U | static_cast<std::uint64_t>(thread)) {}
  bool operator==(const Moment&) const = default;

  /// Returns true if an access now comes after this one on a GPU too.
  bool is_before(Moment now) const {
    if (bits_ == 0) return true;
    if (block() != now.block()) return false;
    return barriers() < now.barriers() || who() == now.who() ||
           (warp() == now.warp() && warp_barriers() < now.warp_barriers());
  }
  /// Returns true if with(now) would change nothing.
  bool includes(Moment now) const {
    return bits_ == now.bits_ || (who() == several_warps && bits_ >> 28U == now.bits_ >> 28U);
  }
  /// Merges this moment with a later, unordered one: only what is after both is after the result.
  Moment with(Moment later) const;
  /// Returns "thread 3", "several threads", ...
  std::string describe() const;

 private:
  static constexpr std::uint32_t several_of_warp = 1024, several_warps = 2048;
  static constexpr std::uint32_t several_blocks = max_blocks + 1;
  std::uint32_t block() const { return static_cast<std::uint32_t>(bits_ >> 44U); }
  std::uint32_t barriers() const { return bits_ >> 28U & 0xFFFFU; }
  std::uint32_t warp_barriers() const { return bits_ >> 12U & 0xFFFFU; }
  /// Returns a thread, several_of_warp + the warp, or several_warps.
  std::uint32_t who() const { return bits_ & 0xFFFU; }
  std::uint32_t warp() const {
    return who() < several_of_warp ? who() / 32 : who() - several_of_warp;
  }
  std::uint64_t bits_ = 0;
};

class RaceDetector {
 public:
  /// Bytes in a piece, as a power of two: 0 for tests of kernels whose threads write single bytes.
  static inline unsigned piece_shift = 1;

  /// Returns the detector whose block is running a kernel thread now, or null.
  static RaceDetector* watching() { return watching_; }

  void begin_launch();
  /// Call before each block, with its shared memory.
  void begin_block(std::span<const std::byte> shared);
  /// Attributes accesses to this thread from now on. Its own stack is ignored.
  void watch(Moment now, std::span<const std::byte> stack);
  /// Ignores accesses until the next watch().
  void look_away() { watching_ = nullptr; }

  void read(const void* at, std::size_t bytes) {
    for_pieces(at, bytes, [this](std::uintptr_t number, Piece& piece) {
      if (!piece.write.is_before(now_)) note(piece.write, number);
      if (!piece.read.includes(now_))
        piece.read = piece.read.is_before(now_) ? now_ : piece.read.with(now_);
    });
  }
  void write(const void* at, std::size_t bytes) {
    for_pieces(at, bytes, [this](std::uintptr_t number, Piece& piece) {
      if (!piece.write.is_before(now_)) note(piece.write, number);
      if (!piece.read.is_before(now_)) note(piece.read, number);
      piece = {now_, {}};
    });
  }
  /// Returns the first finding since the last call, or an empty string.
  std::string take_finding();

 private:
  static constexpr std::size_t page_pieces = 2048;
  struct Piece {
    Moment write, read;  // reads since that write
  };
  using Page = std::array<Piece, page_pieces>;

  template <class Visit>
  void for_pieces(const void* at, std::size_t bytes, const Visit& visit) {
    const auto first = reinterpret_cast<std::uintptr_t>(at);
    if (first - stack_ < stack_bytes_) return;
    const auto last = (first + bytes - 1) >> piece_shift;
    auto number = first >> piece_shift;
    if (last - first_shared_ < shared_.size()) {
      for (auto* piece = &shared_[number - first_shared_]; number <= last; ++number, ++piece)
        visit(number, *piece);
    } else {
      for (; number <= last; ++number) visit(number, global_piece(number));
    }
  }
  Piece& global_piece(std::uintptr_t number);
  void note(Moment before, std::uintptr_t number);

  static constinit thread_local RaceDetector* watching_;
  Moment now_;
  std::uintptr_t stack_ = 0, stack_bytes_ = 0;
  std::uintptr_t first_shared_ = 0;  // piece number
  std::vector<Piece> shared_;
  std::unordered_map<std::uintptr_t, std::unique_ptr<Page>> pages_;
  struct Found {
    std::uintptr_t number = 0;
    Page* page = nullptr;
  };
  std::array<Found, 64> found_;  // pages indexed by the low bits of their number, in front of the
                                 // map
  std::string finding_;
};

}  // namespace llamesh::emulator
