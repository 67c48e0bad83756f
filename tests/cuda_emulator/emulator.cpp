#include "emulator.hpp"

#include <algorithm>
#include <cstring>

#include "core/error.hpp"

namespace llamesh::emulator {

Block& Block::current() {
  thread_local Block block;
  return block;
}

void Block::run(Index grid, int threads, std::int64_t shared_bytes,
                const std::function<void()>& kernel) {
  expects(threads > 0 && threads <= max_threads && grid.x > 0 && grid.y > 0 && grid.z > 0,
          "a grid of {} x {} x {} blocks of {} threads", grid.x, grid.y, grid.z, threads);
  expects(grid.y < 65536 && grid.z < 65536, "a grid of {} x {} x {} blocks", grid.x, grid.y,
          grid.z);
  expects(std::int64_t{grid.x} * grid.y * grid.z <= Moment::max_blocks, "a grid of {} x {} x {}",
          grid.x, grid.y, grid.z);
  expects(shared_bytes <= max_shared_bytes, "{} bytes of shared memory", shared_bytes);
  grid_ = grid;
  threads_ = threads;
  shared_bytes_ = shared_bytes;
  kernel_ = &kernel;
  while (static_cast<int>(pool_.size()) < threads) pool_.push_back(std::make_unique<Thread>());
  races_.begin_launch();
  blocks_ = 0;
  for (index_.z = 0; index_.z < grid.z; ++index_.z)
    for (index_.y = 0; index_.y < grid.y; ++index_.y)
      for (index_.x = 0; index_.x < grid.x; ++index_.x) run_block();
}

void Block::run_block() {
  shared_.assign(static_cast<std::size_t>(shared_bytes_ + 2 * guard), std::byte{0xFF});
  warps_.assign(static_cast<std::size_t>((threads_ + warp_size - 1) / warp_size), Warp{});
  hidden_.assign(static_cast<std::size_t>(shared_bytes_ / 4 + 1), false);
  waiting_ = done_ = 0;
  barriers_ = 0;
  ++blocks_;
  if (looks_for_races) races_.begin_block({shared(), static_cast<std::size_t>(shared_bytes_)});
  error_ = nullptr;
  for (int t = 0; t < threads_; ++t) {
    auto& thread = *pool_[static_cast<std::size_t>(t)];
    thread.state = State::ready;
    thread.issued.clear();
    thread.groups.clear();
    thread.hidden.clear();
    thread.fiber.restart(&Block::enter);
  }
  const bool reversed = (index_.x + index_.y + index_.z) % 2 != 0;
  step_ = reversed ? -1 : 1;
  at_ = reversed ? threads_ - 1 : 0;
  Fiber::switch_from_to(main_, pool_[static_cast<std::size_t>(at_)]->fiber);
  races_.look_away();
  const auto race = races_.take_finding();
  if (error_) std::rethrow_exception(error_);
  check_guards();
  expects(race.empty(), "block ({}, {}, {}): {}", index_.x, index_.y, index_.z, race);
}

void Block::enter() {
  auto& block = current();
  block.watch_thread();
  try {
    (*block.kernel_)();
    const auto& thread = *block.pool_[static_cast<std::size_t>(block.at_)];
    const bool all_arrived =
        thread.issued.empty() && std::all_of(thread.groups.begin(), thread.groups.end(),
                                             [](const auto& group) { return group.empty(); });
    expects(all_arrived, "thread {} of block ({}, {}, {}) left before its copies had arrived",
            block.at_, block.index_.x, block.index_.y, block.index_.z);
    const auto& warp = block.warps_[static_cast<std::size_t>(block.at_ / warp_size)];
    expects(warp.started.empty() && warp.groups.empty(),
            "thread {} of block ({}, {}, {}) left before its products had ended", block.at_,
            block.index_.x, block.index_.y, block.index_.z);
  } catch (...) {
    block.error_ = std::current_exception();
  }
  block.leave();
}

void Block::leave() {
  auto& thread = *pool_[static_cast<std::size_t>(at_)];
  thread.state = State::done;
  ++done_;
  const int next = error_ ? -1 : next_ready();
  if (!error_ && next < 0 && done_ < threads_)
    error_ = std::make_exception_ptr(std::runtime_error(
        fmt::format("thread {} of block ({}, {}, {}) left while others wait for it", at_, index_.x,
                    index_.y, index_.z)));
  if (next < 0) Fiber::switch_from_to(thread.fiber, main_);
  at_ = next;
  Fiber::switch_from_to(thread.fiber, pool_[static_cast<std::size_t>(next)]->fiber);
}

int Block::next_ready() const {
  const auto ready = [this](int t) {
    return pool_[static_cast<std::size_t>(t)]->state == State::ready;
  };
  // A warp runs as far as it can, so that it overtakes whatever no barrier holds back.
  const int first = at_ / warp_size * warp_size;
  const int lanes = std::min(warp_size, threads_ - first);
  for (int i = 1, t = at_ - first; i < lanes; ++i) {
    t = (t + step_ + lanes) % lanes;
    if (ready(first + t)) return first + t;
  }
  for (int i = 1, t = at_; i < threads_; ++i) {
    t = (t + step_ + threads_) % threads_;
    if (ready(t)) return t;
  }
  return -1;
}

void Block::go_on() {
  const int next = next_ready();
  expects(next >= 0, "block ({}, {}, {}): every thread waits, some at a barrier, some in a warp",
          index_.x, index_.y, index_.z);
  auto& from = pool_[static_cast<std::size_t>(at_)]->fiber;
  const int me = at_;
  at_ = next;
  Fiber::switch_from_to(from, pool_[static_cast<std::size_t>(next)]->fiber);
  at_ = me;
  watch_thread();
}

void Block::sync() {
  expects(done_ == 0, "block ({}, {}, {}): a barrier after {} threads left", index_.x, index_.y,
          index_.z, done_);
  if (++waiting_ == threads_) {
    waiting_ = 0;
    ++barriers_;
    expects(barriers_ <= Moment::max_barriers, "{} barriers of a block", barriers_);
    for (int t = 0; t < threads_; ++t) pool_[static_cast<std::size_t>(t)]->state = State::ready;
    watch_thread();
    return;
  }
  pool_[static_cast<std::size_t>(at_)]->state = State::at_barrier;
  go_on();
}

void Block::together(Together what, void* argument, void (*perform)(void* const* lanes)) {
  const int first = at_ / warp_size * warp_size;
  expects(first + warp_size <= threads_, "a warp of {} threads", threads_ - first);
  auto& warp = warps_[static_cast<std::size_t>(at_ / warp_size)];
  expects(warp.arrived == 0 || warp.what == what, "lanes of one warp do different things: {}, {}",
          static_cast<int>(warp.what), static_cast<int>(what));
  warp.what = what;
  warp.arguments[static_cast<std::size_t>(at_ - first)] = argument;
  if (++warp.arrived < warp_size) {
    pool_[static_cast<std::size_t>(at_)]->state = State::in_warp;
    go_on();
    return;
  }
  if (what == Together::sync) ++warp.barriers;
  expects(warp.barriers <= Moment::max_barriers, "{} barriers of a warp", warp.barriers);
  races_.look_away();
  if (perform) perform(warp.arguments.data());
  watch_thread();
  warp.arrived = 0;
  for (int t = first; t < first + warp_size; ++t)
    pool_[static_cast<std::size_t>(t)]->state = State::ready;
}

void Block::check_shared(std::int64_t offset, std::int64_t bytes, std::int64_t alignment) const {
  expects(offset >= 0 && offset + bytes <= shared_bytes_ && offset % alignment == 0,
          "{} bytes at {} of {} bytes of shared memory", bytes, offset, shared_bytes_);
}

void Block::watch_thread() {
  if (!looks_for_races) return;
  const auto& warp = warps_[static_cast<std::size_t>(at_ / warp_size)];
  races_.watch({blocks_, barriers_, warp.barriers, at_},
               pool_[static_cast<std::size_t>(at_)]->fiber.stack());
}

void Block::reads(const void* at, std::int64_t bytes) {
  if (looks_for_races) races_.read(at, static_cast<std::size_t>(bytes));
}

void Block::writes(const void* at, std::int64_t bytes) {
  if (looks_for_races) races_.write(at, static_cast<std::size_t>(bytes));
}

void Block::copy_async(std::int64_t offset, const void* from, std::int64_t bytes) {
  check_shared(offset, bytes, bytes);
  expects(reinterpret_cast<std::uintptr_t>(from) % static_cast<std::uintptr_t>(bytes) == 0,
          "an asynchronous copy from an unaligned address");
  std::memset(shared() + offset, 0xFF, static_cast<std::size_t>(bytes));
  writes(shared() + offset, bytes);
  if (from) reads(from, bytes);
  pool_[static_cast<std::size_t>(at_)]->issued.push_back({offset, from, bytes});
}

void Block::commit_copies() {
  auto& thread = *pool_[static_cast<std::size_t>(at_)];
  thread.groups.push_back(std::move(thread.issued));
  thread.issued.clear();
}

void Block::wait_copies(int open) {
  auto& groups = pool_[static_cast<std::size_t>(at_)]->groups;
  while (static_cast<int>(groups.size()) > open) {
    for (const auto& copy : groups.front()) {
      auto* to = shared() + copy.offset;
      if (copy.from)
        std::memcpy(to, copy.from, static_cast<std::size_t>(copy.bytes));
      else
        std::memset(to, 0, static_cast<std::size_t>(copy.bytes));
      writes(to, copy.bytes);
      hide_from_products(copy.offset, copy.bytes);
    }
    groups.pop_front();
  }
}

void Block::hide_from_products(std::int64_t offset, std::int64_t bytes) {
  const auto first = offset / 4, last = (offset + bytes - 1) / 4;
  pool_[static_cast<std::size_t>(at_)]->hidden.emplace_back(first, last);
  for (auto word = first; word <= last; ++word) hidden_[static_cast<std::size_t>(word)] = true;
}

void Block::fence_proxy_async() {
  auto& thread = *pool_[static_cast<std::size_t>(at_)];
  for (const auto& [first, last] : thread.hidden)
    for (auto word = first; word <= last; ++word) hidden_[static_cast<std::size_t>(word)] = false;
  thread.hidden.clear();
}

void Block::check_shown(std::int64_t offset, std::int64_t bytes) {
  check_shared(offset, bytes, 1);
  reads(shared() + offset, bytes);
  for (auto word = offset / 4; word <= (offset + bytes - 1) / 4; ++word)
    expects(!hidden_[static_cast<std::size_t>(word)],
            "a product reads shared memory at {}, which its writer has not shown", 4 * word);
}

void Block::start_product(std::function<void()> finish) {
  warps_[static_cast<std::size_t>(at_ / warp_size)].started.push_back(std::move(finish));
}

void Block::wgmma_commit_group() {
  auto& warp = warps_[static_cast<std::size_t>(at_ / warp_size)];
  warp.groups.push_back(std::move(warp.started));
  warp.started.clear();
}

void Block::wgmma_wait_group(int open) {
  auto& groups = warps_[static_cast<std::size_t>(at_ / warp_size)].groups;
  while (static_cast<int>(groups.size()) > open) {
    for (const auto& finish : groups.front()) finish();
    groups.pop_front();
  }
}

void Block::check_guards() const {
  const auto whole = [](auto first, auto last) {
    return std::all_of(first, last, [](std::byte b) { return b == std::byte{0xFF}; });
  };
  expects(whole(shared_.begin(), shared_.begin() + guard) &&
              whole(shared_.end() - guard, shared_.end()),
          "block ({}, {}, {}) wrote beyond its {} bytes of shared memory", index_.x, index_.y,
          index_.z, shared_bytes_);
}

}  // namespace llamesh::emulator
