#include "race_detector.hpp"

#include <fmt/format.h>

#include <utility>

namespace llamesh::emulator {

Moment Moment::with(Moment later) const {
  auto who = this->who();
  if (warp() != later.warp())
    who = several_warps;
  else if (who != later.who())
    who = several_of_warp + warp();
  Moment both = later;  // within a block the later one has the larger counts
  both.bits_ = both.bits_ >> 12U << 12U | who;
  if (block() != later.block()) both.bits_ |= std::uint64_t{several_blocks} << 44U;
  return both;
}

std::string Moment::describe() const {
  if (block() == several_blocks) return "threads of several blocks";
  if (who() >= several_of_warp) return fmt::format("several threads of block {}", block() - 1);
  return fmt::format("thread {} of block {}", who(), block() - 1);
}

constinit thread_local RaceDetector* RaceDetector::watching_ = nullptr;

void RaceDetector::begin_launch() {
  pages_.clear();
  found_.fill({});
}

void RaceDetector::begin_block(std::span<const std::byte> shared) {
  first_shared_ = reinterpret_cast<std::uintptr_t>(shared.data()) >> piece_shift;
  shared_.assign((shared.size() >> piece_shift) + 1, Piece{});
}

void RaceDetector::watch(Moment now, std::span<const std::byte> stack) {
  now_ = now;
  stack_ = reinterpret_cast<std::uintptr_t>(stack.data());
  stack_bytes_ = stack.size();
  watching_ = this;
}

RaceDetector::Piece& RaceDetector::global_piece(std::uintptr_t number) {
  const auto page_number = number / page_pieces;
  auto& found = found_[page_number % found_.size()];
  if (found.page == nullptr || found.number != page_number) {
    auto& page = pages_[page_number];
    if (!page) page = std::make_unique<Page>();
    found = {page_number, page.get()};
  }
  return (*found.page)[number % page_pieces];
}

void RaceDetector::note(Moment before, std::uintptr_t number) {
  if (!finding_.empty()) return;
  const auto in_shared = number - first_shared_;
  const auto where = in_shared < shared_.size()
                         ? fmt::format("shared memory at {}", in_shared << piece_shift)
                         : fmt::format("global memory at {:#x}", number << piece_shift);
  finding_ = fmt::format("a race: {} and {} access {}, one writes, and nothing orders them",
                         before.describe(), now_.describe(), where);
}

std::string RaceDetector::take_finding() {
  return std::exchange(finding_, {});
}

}  // namespace llamesh::emulator
