#include <cuda_profiler_api.h>
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "device/cuda/runtime.hpp"
#include "emulator.hpp"
#include "fake_stream.hpp"

// The part of the CUDA runtime that llamesh calls, faked on the CPU. A stream is a thread that runs
// its queue with pauses of random length, so that a missing event or wait between two streams, or
// between a stream and the host, makes work run too early or too late. Memory starts as garbage and
// is garbage again once freed.
//
// As in CUDA, the first GPU is a thread's initial current device, and the first call (of most
// kinds) creates a context on the current one, which costs hundreds of MB on a real GPU. A process
// that creates contexts on two GPUs is aborted, because llamesh needs one.
//
// FAKE_GPUS=N: number of visible GPUs (1). FAKE_FIRST_GPU=N: index of the first one on the machine
// (0). FAKE_GPU_MIB=N: memory per GPU (16384).
// FAKE_GPU_MAJOR=N: its compute capability (9).
// FAKE_GPU_FAILS=1: the driver cannot list its GPUs.
// FAKE_GPU_TELLS_WAITS=1: on exit the process reports how often the host has waited for the GPU
// since its first collective.
// FAKE_PROFILER=FILE: writes a line per profiler or NVTX call (nvtx.cpp) to FILE.PID.
// FAKE_GPU_KERNEL_TAKES=N: each kernel takes N microseconds longer.
// FAKE_GPU_HANGS_WITH=FILE: kernels hang once the file exists.
// FAKE_GPU_IDLE=1: kernels, copies and collectives do nothing and memory is never touched, so that
// problems too large for this machine run through on the host side.

using fake_cuda::Done;

struct CUstream_st : fake_cuda::Stream {};
struct CUevent_st {
  bool has_time = false;
  std::shared_ptr<Done> done = nullptr;  // from the last record; null before the first
};

namespace {

std::size_t number_of(const char* variable, std::size_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

const bool idle = number_of("FAKE_GPU_IDLE", 0) != 0;
constexpr unsigned char garbage = 0xA5;

void fill_with_garbage(void* data, std::size_t bytes) {
  if (!idle) std::memset(data, garbage, bytes);
}

/// An idle GPU may have more memory than this machine.
void* room_for(std::size_t bytes) {
  if (!idle) return std::aligned_alloc(512, (bytes + 511) / 512 * 512);
  return mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

struct Memory {
  const std::size_t bytes = number_of("FAKE_GPU_MIB", 16384) << 20U;
  std::mutex mutex;
  std::map<void*, std::size_t> sizes;
  std::size_t used = 0;
};
Memory& memory() {
  static auto& it = *new Memory;
  return it;
}

thread_local int current = 0;
thread_local cudaError_t last_error = cudaSuccess;

cudaError_t failed(cudaError_t error) {
  last_error = error;
  return error;
}

/// Counter for host waits on streams, events or the whole GPU.
struct HostWaits {
  std::atomic<std::int64_t> count{0};
  ~HostWaits() {
    if (number_of("FAKE_GPU_TELLS_WAITS", 0) == 0) return;
    std::fprintf(stderr, "fake GPU: the host has waited %lld times\n",
                 static_cast<long long>(count));
  }
};
HostWaits host_waits;

/// Creates a context on the current GPU for this process.
void ready_current() {
  static std::atomic<int> readied{-1};
  int expected = -1;
  if (std::getenv("CUDA_DEVICE_MAX_CONNECTIONS") == nullptr) {
    std::fprintf(stderr, "fake GPU: a context without CUDA_DEVICE_MAX_CONNECTIONS\n");
    std::abort();
  }
  if (readied.compare_exchange_strong(expected, current) || expected == current) return;
  std::fprintf(stderr, "fake GPU: GPU %d is readied in a process that uses GPU %d\n", current,
               expected);
  std::abort();
}

}  // namespace

namespace fake_cuda {

void count_waits_from_now() {
  host_waits.count = 0;
}

bool allocate(void** data, std::size_t bytes) {
  ready_current();
  auto& m = memory();
  const std::lock_guard lock(m.mutex);
  if (m.used + bytes > m.bytes) return false;
  *data = room_for(bytes);
  fill_with_garbage(*data, bytes);
  m.sizes[*data] = bytes;
  m.used += bytes;
  return true;
}

void release(void* data) {
  auto& m = memory();
  const std::lock_guard lock(m.mutex);
  const auto found = m.sizes.find(data);
  if (found == m.sizes.end()) {
    std::fprintf(stderr, "fake GPU: freed memory that it did not give\n");
    std::abort();
  }
  fill_with_garbage(data, found->second);
  m.used -= found->second;
  idle ? static_cast<void>(munmap(data, found->second)) : std::free(data);
  m.sizes.erase(found);
}

namespace {

struct Streams {
  std::mutex mutex;
  std::set<Stream*> all;
};
Streams& streams() {
  static auto& it = *new Streams;
  return it;
}

}  // namespace

Stream::Stream() : thread_([this] { work(); }) {
  const std::lock_guard lock(streams().mutex);
  streams().all.insert(this);
}

Stream::~Stream() {
  {
    const std::lock_guard lock(streams().mutex);
    streams().all.erase(this);
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Stream::put(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.notify_all();
}

std::shared_ptr<Done> Stream::record() {
  auto done = std::make_shared<Done>();
  put([done] { done->set(); });
  return done;
}

void Stream::synchronize_all() {
  std::vector<std::shared_ptr<Done>> moments;
  {
    const std::lock_guard lock(streams().mutex);
    for (auto* stream : streams().all) moments.push_back(stream->record());
  }
  for (const auto& moment : moments) moment->wait();
}

void Stream::work() {
  std::minstd_rand random(static_cast<unsigned>(reinterpret_cast<std::uintptr_t>(this) >> 6U));
  while (true) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const auto next = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    next();
  }
}

void enqueue(cudaStream_t stream, std::function<void()> work) {
  if (!idle) stream->put(std::move(work));
}

}  // namespace fake_cuda

extern "C" {

// --- Devices ---

cudaError_t cudaGetDeviceCount(int* count) {
  if (number_of("FAKE_GPU_FAILS", 0) != 0) return cudaErrorSystemNotReady;
  *count = static_cast<int>(number_of("FAKE_GPUS", 1));
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  current = device;
  ready_current();
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current;
  return cudaSuccess;
}
/// Applies to the current GPU, and creates its context.
cudaError_t cudaSetDeviceFlags(unsigned /*flags*/) {
  ready_current();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  const char* name = std::getenv("FAKE_GPU_NAME");
  std::snprintf(properties->name, sizeof properties->name, "%s", name ? name : "fake GPU");
  properties->major = static_cast<int>(number_of("FAKE_GPU_MAJOR", 9));
  properties->multiProcessorCount = 2;
  properties->totalGlobalMem = memory().bytes;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  const int of_machine = static_cast<int>(number_of("FAKE_FIRST_GPU", 0)) + device;
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", of_machine);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// --- Errors ---

/// Returns this thread's last error once. An event that is not complete yet counts as one.
cudaError_t cudaGetLastError() {
  return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the fake GPU";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}

// --- Profiler ---

cudaError_t cudaProfilerStart() {
  fake_cuda::tell_profiler("start");
  return cudaSuccess;
}
cudaError_t cudaProfilerStop() {
  fake_cuda::tell_profiler("stop");
  return cudaSuccess;
}

// --- Memory ---

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return fake_cuda::allocate(data, bytes) ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* data) {
  ready_current();
  // Like CUDA's, waits for all work in flight.
  cudaDeviceSynchronize();
  if (data) fake_cuda::release(data);
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  ready_current();
  *data = idle ? std::calloc(1, bytes) : std::malloc(bytes);  // no copy fills it
  fill_with_garbage(*data, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const std::lock_guard lock(memory().mutex);
  *total = memory().bytes;
  *free = memory().bytes - memory().used;
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind /*kind*/,
                            cudaStream_t stream) {
  fake_cuda::enqueue(stream, [=] { std::memmove(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, std::size_t bytes, cudaStream_t stream) {
  fake_cuda::enqueue(stream, [=] { std::memset(data, value, bytes); });
  return cudaSuccess;
}
/// Runs in the default stream, which llamesh's (non-blocking) streams do not wait for.
cudaError_t cudaMemset(void* data, int value, std::size_t bytes) {
  return cudaMemsetAsync(data, value, bytes, fake_cuda::default_stream());
}

// --- Streams and events ---

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned /*flags*/,
                                         int /*priority*/) {
  ready_current();
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  ++host_waits.count;
  stream->record()->wait();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
  if (event->done) stream->put([done = event->done] { done->wait(); });
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  ++host_waits.count;
  fake_cuda::Stream::synchronize_all();
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  ready_current();
  *event = new CUevent_st{.has_time = (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->done = stream->record();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  ready_current();
  return !event->done || event->done->is_set() ? cudaSuccess : failed(cudaErrorNotReady);
}
/// Both events must have happened; the host does not wait.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  for (const auto* event : {begin, end}) {
    if (!event->has_time || !event->done) return failed(cudaErrorInvalidResourceHandle);
    if (!event->done->is_set()) return failed(cudaErrorNotReady);
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(end->done->at() - begin->done->at()).count();
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  ++host_waits.count;
  if (event->done) event->done->wait();
  return cudaSuccess;
}

}  // extern "C"

namespace fake_cuda {

cudaStream_t default_stream() {
  static auto* const stream = new CUstream_st;
  return stream;
}

}  // namespace fake_cuda

// Queues emulated kernels on the fake streams.
namespace llamesh::emulator {
namespace {

const bool hooked = [] {
  looks_for_races = false;  // the kernels' own tests do that
  put_into_gpu_stream = [](device::Stream& stream, std::function<void()> work) {
    static const char* const hangs_with = std::getenv("FAKE_GPU_HANGS_WITH");
    static const std::chrono::microseconds more(number_of("FAKE_GPU_KERNEL_TAKES", 0));
    fake_cuda::enqueue(device::cuda::native(stream), [work = std::move(work)] {
      if (more.count() > 0) std::this_thread::sleep_for(more);
      while (hangs_with && access(hangs_with, F_OK) == 0) pause();
      work();
    });
  };
  return true;
}();

}  // namespace
}  // namespace llamesh::emulator
