#include "comm/transports/nccl/connection.hpp"

#include <chrono>
#include <exception>
#include <optional>
#include <utility>

#include "core/log.hpp"
#include "device/cuda/runtime.hpp"

namespace llamesh::comm {
namespace {

using Clock = std::chrono::steady_clock;
/// Two minutes connect hundreds of nodes; thousands have been reported to take longer.
std::chrono::seconds time_limit(int ranks) {
  return std::chrono::seconds(120 + 30 * ranks / 1000);
}
constexpr auto watch_interval = std::chrono::milliseconds(100);

/// Returns a call's failure if NCCL found no memory for its buffers.
std::optional<Error> out_of_memory(const std::string& what) {
  const std::string why = ncclGetLastError(nullptr);
  if (why.find("out of memory") == why.npos) return {};
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  return Error(
      ExitCode::bad_input,
      fmt::format("{}: NCCL found no memory for its buffers on the GPU ({} of {} bytes are "
                  "free){}",
                  what, free, total, device::memory_advice()));
}

}  // namespace

void check(ncclResult_t result, const std::string& what) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  if (const auto error = out_of_memory(what)) throw *error;
  fail(ExitCode::internal_error, "{} failed in NCCL: {} ({})", what, ncclGetErrorString(result),
       ncclGetLastError(nullptr));
}

Nccl::Connection::Connection(ncclComm_t made, std::string axis_name, int world_ranks)
    : comm_(made), axis_(std::move(axis_name)), time_limit_(time_limit(world_ranks)) {
  settle(ncclSuccess);  // completes the call that made it
  watcher_ = std::thread([this] { watch(); });
}

Nccl::Connection::~Connection() {
  stop_ = true;
  if (watcher_.joinable()) watcher_.join();
  if (aborted_) return;
  // If an error unwinds, peers may not arrive, and ncclCommFinalize would wait for them.
  if (std::uncaught_exceptions() == 0 && finalized())
    ncclCommDestroy(comm_);
  else
    ncclCommAbort(comm_);
}

bool Nccl::Connection::finalized() {
  const std::lock_guard lock(calls_);
  try {
    begin("ncclCommFinalize", "");
    settle(ncclCommFinalize(comm_));
    return true;
  } catch (const Error&) {  // already reported by whoever waited for the result
    return false;
  }
}

void Nccl::Connection::begin(const char* name, const char* subject) {
  if (aborted_) throw PeerFailure(ExitCode::stopped_early);  // give_up() has reported it
  collective_ = name;
  subject_ = subject;
}

void Nccl::Connection::settle(ncclResult_t result) const {
  check(result, describe(result));
  const auto start = Clock::now();
  while (true) {
    ncclResult_t state = ncclSuccess;
    check(ncclCommGetAsyncError(comm_, &state), describe(state));
    if (state == ncclSuccess) return;
    if (state != ncclInProgress) throw failure(state);
    if (Clock::now() - start > time_limit_)
      fail(ExitCode::stopped_early,
           "NCCL has not completed {} in {} s: a rank is missing or the network between the "
           "GPUs does not work; NCCL_DEBUG=INFO shows how far it came, and docs/gpu.md#networks "
           "has usual remedies",
           describe(state), time_limit_.count());
    std::this_thread::yield();
  }
}

/// Describes an asynchronous error after a call: a dead peer, a broken link, or too little memory.
Error Nccl::Connection::failure(ncclResult_t error) const {
  if (const auto no_memory = out_of_memory(describe(error))) return *no_memory;
  return {ExitCode::stopped_early,
          fmt::format("{} failed in NCCL: {}", describe(error), ncclGetErrorString(error))};
}

/// Aborts the communicator and logs one line. The caller holds calls_.
void Nccl::Connection::give_up(const Error& error) {
  stop_ = true;  // report once, from the watcher or the caller
  spdlog::error("{}; the job ends{}", error.what(),
                error.code() == ExitCode::stopped_early ? ", submit it again" : "");
  end_process_soon(error.code());
  aborted_ = true;
  ncclCommAbort(comm_);  // releases kernels that wait on the GPU
}

std::string Nccl::Connection::describe(ncclResult_t error) const {
  const char* subject = subject_;
  return fmt::format("{}{}{} on axis {}{}", collective_.load(), *subject == '\0' ? "" : " of ",
                     subject, axis_, error == ncclRemoteError ? " (another rank is gone)" : "");
}

bool Nccl::Connection::healthy() {
  const std::lock_guard lock(calls_);
  if (aborted_) return false;
  ncclResult_t state = ncclSuccess;
  return ncclCommGetAsyncError(comm_, &state) == ncclSuccess &&
         (state == ncclSuccess || state == ncclInProgress);
}

void Nccl::Connection::deregister(ncclWindow_t window) {
  const std::lock_guard lock(calls_);
  if (window != nullptr && !aborted_) ncclCommWindowDeregister(comm_, window);
}

void Nccl::Connection::watch() {
  while (!stop_) {
    std::this_thread::sleep_for(watch_interval);
    const std::unique_lock lock(calls_, std::try_to_lock);
    if (!lock.owns_lock()) continue;  // a call in progress checks for errors itself
    ncclResult_t state = ncclSuccess;
    const auto asked = ncclCommGetAsyncError(comm_, &state);
    if (asked == ncclSuccess && (state == ncclSuccess || state == ncclInProgress)) continue;
    if (!stop_) give_up(failure(asked != ncclSuccess ? asked : state));
    return;
  }
}

namespace {

/// Allocates with ncclMemAlloc(), which rounds up to whole GPU pages and does not tell a lack of
/// memory from other CUDA errors.
void* allocate(std::size_t bytes) {
  constexpr std::size_t largest_page = std::size_t{2} << 20U;
  void* data = nullptr;
  const auto result = ncclMemAlloc(&data, bytes);
  std::size_t free = 0;
  std::size_t total = 0;
  if (result == ncclUnhandledCudaError && cudaMemGetInfo(&free, &total) == cudaSuccess &&
      free < bytes + largest_page)
    device::cuda::throw_out_of_memory(static_cast<std::int64_t>(bytes));
  check(result, "ncclMemAlloc");
  return data;
}

}  // namespace

device::Buffer registered_buffer(const std::shared_ptr<Nccl::Connection>& connection,
                                 std::int64_t bytes) {
  using device::cuda::check;
  if (bytes == 0) return {};
  const auto size = static_cast<std::size_t>(bytes);
  void* const data = allocate(size);
  check(cudaMemset(data, 0, size), "cudaMemset");
  check(cudaDeviceSynchronize(), "cudaMemset");
  ncclWindow_t window = nullptr;  // stays null if NCCL cannot use one
  connection->call("ncclCommWindowRegister", "", [&](ncclComm_t comm) {
    return ncclCommWindowRegister(comm, data, size, &window, NCCL_WIN_COLL_SYMMETRIC);
  });
  std::shared_ptr<void> owner(data, [connection, window](void* p) {
    connection->deregister(window);
    ncclMemFree(p);
  });
  return {std::move(owner), static_cast<std::byte*>(data), bytes, bytes};
}

}  // namespace llamesh::comm
