// Faults in faulty_llamesh: llamesh, linked with the functions below around their originals
// (--wrap). LLAMESH_FAULT="KIND RANK STEP NUMBER" selects a rank's fault; NUMBER draws its details:
//   flipped  a bit in its master weights or moments flips before the step's passes
//   nan      bit 30 in a norm's weight flips there, which makes it a NaN
//   another  before these passes all ranks make an extra all-reduce; this rank makes a different
//            collective, none, or two
//   wrong    a bit flips in the first weight gradient that it computes in that step
//   lost     its node loses its memory checkpoints and the rank dies just before it sends the
//            remote replicas of memory checkpoint STEP (1: the first)
//   vanished its node loses its memory checkpoints while a launch receives snapshots
//   unsent   from this step on, its sends of 4 KiB and more fail, as MPI reports for a peer that is
//            gone. Before that, rank NUMBER stops itself (SIGSTOP) if that is another one
//   held     it waits before the passes of the first step from STEP on, if the file LLAMESH_HOLD
//            exists by then, until that file is removed; NUMBER means nothing
// It writes the fault's time (nanoseconds since 1970) to the file LLAMESH_FAULT_AT.
//
// A test that acts on a run in progress holds it meanwhile, so that it does not depend on how fast
// the run is. It makes the file LLAMESH_HOLD, starts the run, waits for the file
// $LLAMESH_HOLD.reached, which the held rank makes, does what it wants to do to the run, and
// removes LLAMESH_HOLD. The others wait for the held rank in their next collective. The held rank
// is alive: it receives signals, its watchdog sends heartbeats, and it counts as making progress
// however long it is held. It is held once: a later launch finds no file. Runs that share a file
// system need files of their own.
#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "checkpoint/memory/memory_folder.hpp"
#include "comm/diagnosis/watchdog.hpp"
#include "comm/mesh/device_mesh.hpp"
#include "comm/mpi/mpi.hpp"
#include "comm/transports/messages.hpp"
#include "core/error.hpp"
#include "core/process.hpp"
#include "core/tensor.hpp"
#include "train/step/trainer.hpp"

namespace llamesh {
namespace {

using train::Trainer;

struct Fault {
  std::string kind;
  int rank = -1;
  std::int64_t step = 0;
  std::uint64_t number = 0;
};

Fault asked() {
  Fault fault;
  const char* text = std::getenv("LLAMESH_FAULT");
  std::istringstream words(text == nullptr ? "" : text);
  words >> fault.kind >> fault.rank >> fault.step >> fault.number;
  if (text == nullptr) return fault;
  const auto kinds = {"flipped", "nan", "another", "wrong", "lost", "unsent", "vanished", "held"};
  expects(words && std::ranges::find(kinds, fault.kind) != kinds.end(),
          "LLAMESH_FAULT is no fault");
  return fault;
}

const Trainer* trainer_of_run = nullptr;
comm::DeviceMesh* mesh_of_run = nullptr;
comm::Watchdog* watchdog_of_run = nullptr;
bool next_gradient_is_wrong = false;
std::atomic<bool> sends_fail = false;

void note_time() {
  const char* file = std::getenv("LLAMESH_FAULT_AT");
  if (file != nullptr)
    std::ofstream(file) << std::chrono::system_clock::now().time_since_epoch().count() << "\n";
}

void flip_bit(float& value, std::uint64_t bit) {
  value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) ^ 1U << bit);
}

/// Flips a bit in the first weight between 1 and 2, like those in norms.
void flip_to_nan(const Trainer& trainer) {
  trainer.state().stream().record().wait();
  for (const auto& shard : trainer.state().masters().shards)
    for (float& value : shard.span<float>())
      if (value > 1 && value < 2) return flip_bit(value, 30);
  expects(false, "no weight is above 1");
}

bool all_zero(const Tensor& shard) {
  return std::ranges::all_of(shard.span<float>(), [](float value) { return value == 0; });
}

/// Flips a bit in a nonzero number: in padding, or for a token that never came, it has no effect.
void flip(const Trainer& trainer, std::uint64_t number) {
  const auto& state = trainer.state();
  const auto which = number % (1 + state.moments().size());
  const auto unit = number % state.masters().shards.size();
  state.stream().record().wait();
  auto shard = state.masters().shards[unit];
  if (which > 0 && !all_zero(state.moments()[which - 1].shards[unit]))
    shard = state.moments()[which - 1].shards[unit];
  auto* const values = shard.as<float>();
  auto i = static_cast<std::int64_t>(number * 2654435761U) % shard.numel();
  while (values[i] == 0) i = (i + 1) % shard.numel();
  flip_bit(values[i], 4 + number % 28);  // the next update rounds the lowest bits away
}

/// Makes an extra collective along the largest axis.
void call_collective(bool differs, std::uint64_t number) {
  auto* axis = &mesh_of_run->axes().front();
  for (auto& one : mesh_of_run->axes())
    if (one.size > axis->size) axis = &one;
  static const device::Buffer data(std::int64_t{4} * 64);
  const auto tensor = data.tensor(DType::f32, {64});
  auto& collectives = *axis->collectives;
  collectives.set_subject("one more");
  if (!differs) {
    collectives.all_reduce(tensor, {}).wait();
  } else if (number % 3 == 0) {
    collectives.broadcast(tensor, 0, {}).wait();
  } else if (number % 3 == 1) {
    collectives.all_reduce(tensor, {});
    collectives.all_reduce(tensor, {}).wait();
  }
}

/// Makes this rank's sends fail. If another rank is to stop, it does so first.
void lose_peer(const Fault& fault) {
  const int rank = mesh_of_run->rank();
  const auto stopped = static_cast<int>(fault.number);
  const std::filesystem::path sign = "stopped-rank";
  if (rank == stopped && rank != fault.rank) {
    const std::ofstream created(sign.string());
    std::raise(SIGSTOP);
  }
  if (rank != fault.rank) return;
  while (rank != stopped && !std::filesystem::exists(sign))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  sends_fail = true;
}

/// Waits while the file LLAMESH_HOLD exists, and says by another file that it does.
void hold() {
  const char* name = std::getenv("LLAMESH_HOLD");
  expects(name != nullptr, "LLAMESH_HOLD names no file");
  const std::filesystem::path file = name;
  const auto is_there = [&] {
    std::error_code ignored;
    return std::filesystem::exists(file, ignored);
  };
  if (!is_there()) return;
  const std::ofstream reached(file.string() + ".reached");
  while (is_there()) {
    if (watchdog_of_run != nullptr) watchdog_of_run->progress();
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void inject(const Trainer& trainer) {
  static const Fault fault = asked();
  static bool done = false;
  const bool in_exchange = fault.kind == "lost" || fault.kind == "vanished";
  const auto next = trainer.step() + 1;
  const bool is_due = fault.kind == "held" ? next >= fault.step : next == fault.step;
  if (done || in_exchange || !is_due) return;
  done = true;
  const bool here = mesh_of_run->rank() == fault.rank;
  if (here) note_time();
  if (fault.kind == "held") {
    if (here) hold();
    return;
  }
  if (fault.kind == "another") return call_collective(here, fault.number);
  if (fault.kind == "unsent") return lose_peer(fault);
  if (!here) return;
  if (fault.kind == "wrong")
    next_gradient_is_wrong = true;
  else if (fault.kind == "nan")
    flip_to_nan(trainer);
  else
    flip(trainer, fault.number);
}

/// Removes the snapshots of the test's second node.
void remove_snapshots() {
  checkpoint::remove_memory_folders(checkpoint::memory_folder_prefix("runs/tiny") +
                                    this_process().host + ".1");
}

}  // namespace

// Mangled names of the wrapped functions and their wrappers.
#define MAKE_TRAINER \
  "_ZN7llamesh5train7TrainerC1ERKNS_4comm12CommunicatorERKNS0_5SetupERNS2_10DeviceMeshE"
#define LLAMA_TRAIN "_ZN7llamesh5model8CausalLM5trainERNS0_7WeightsERKNS0_5BatchEf"
#define FORWARD_BACKWARD                                                         \
  "_ZN7llamesh5train6Engine16forward_backwardESt4spanIKNS_5model5BatchELm184467" \
  "44073709551615EEfRKSt8functionIFvvEE"
#define WEIGHT_GRADIENT                                                                 \
  "_ZN7llamesh3ops3cpu22linear_backward_weightERNS_6device6StreamENS_6TensorES5_S5_NS_" \
  "10AccumulateE"
#define EXCHANGE_MESSAGES                                                   \
  "_ZN7llamesh4comm17exchange_messagesERKNS0_12CommunicatorESt4spanIKNS0_"  \
  "15OutgoingMessageELm18446744073709551615EES4_IKNS0_15IncomingMessageELm" \
  "18446744073709551615EEPKc"
#define WATCHDOG_BEGIN \
  "_ZN7llamesh4comm8Watchdog5beginENS0_8ActivityElNSt6chrono8durationIlSt5ratioILl1ELl1EEEES7_"

void real_trainer(Trainer* self, const comm::Communicator& world, const train::Setup& setup,
                  comm::DeviceMesh& mesh) __asm__("__real_" MAKE_TRAINER);
void wrapped_trainer(Trainer* self, const comm::Communicator& world, const train::Setup& setup,
                     comm::DeviceMesh& mesh) __asm__("__wrap_" MAKE_TRAINER);
void real_train(model::CausalLM* self, model::Weights& weights, const model::Batch& batch,
                float scale) __asm__("__real_" LLAMA_TRAIN);
void wrapped_train(model::CausalLM* self, model::Weights& weights, const model::Batch& batch,
                   float scale) __asm__("__wrap_" LLAMA_TRAIN);
void real_forward_backward(
    train::Engine* self, std::span<const model::Batch> micro_batches, float scale,
    const std::function<void()>& on_micro_batch) __asm__("__real_" FORWARD_BACKWARD);
void wrapped_forward_backward(
    train::Engine* self, std::span<const model::Batch> micro_batches, float scale,
    const std::function<void()>& on_micro_batch) __asm__("__wrap_" FORWARD_BACKWARD);
void real_weight_gradient(device::Stream& stream, Tensor dw, Tensor dy, Tensor x,
                          Accumulate accumulate) __asm__("__real_" WEIGHT_GRADIENT);
void wrapped_weight_gradient(device::Stream& stream, Tensor dw, Tensor dy, Tensor x,
                             Accumulate accumulate) __asm__("__wrap_" WEIGHT_GRADIENT);

void real_exchange(const comm::Communicator& group, std::span<const comm::OutgoingMessage> outgoing,
                   std::span<const comm::IncomingMessage> incoming,
                   const char* purpose) __asm__("__real_" EXCHANGE_MESSAGES);
void wrapped_exchange(const comm::Communicator& group,
                      std::span<const comm::OutgoingMessage> outgoing,
                      std::span<const comm::IncomingMessage> incoming,
                      const char* purpose) __asm__("__wrap_" EXCHANGE_MESSAGES);
void real_begin(comm::Watchdog* self, comm::Activity activity, std::int64_t step,
                std::chrono::seconds of_the_first,
                std::chrono::seconds at_least) __asm__("__real_" WATCHDOG_BEGIN);
void wrapped_begin(comm::Watchdog* self, comm::Activity activity, std::int64_t step,
                   std::chrono::seconds of_the_first,
                   std::chrono::seconds at_least) __asm__("__wrap_" WATCHDOG_BEGIN);

extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names
int __real_MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                     MPI_Request* request);
int __wrap_MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm,
                     MPI_Request* request) {
  constexpr int least_bytes = 4096;
  if (sends_fail && type == MPI_BYTE && count >= least_bytes) return MPI_ERR_INTERN;
  return __real_MPI_Isend(data, count, type, to, tag, comm, request);
}
// NOLINTEND(bugprone-reserved-identifier)
}

void wrapped_trainer(Trainer* self, const comm::Communicator& world, const train::Setup& setup,
                     comm::DeviceMesh& mesh) {
  real_trainer(self, world, setup, mesh);
  trainer_of_run = self;
  mesh_of_run = &mesh;
}

void wrapped_begin(comm::Watchdog* self, comm::Activity activity, std::int64_t step,
                   std::chrono::seconds of_the_first, std::chrono::seconds at_least) {
  watchdog_of_run = self;
  real_begin(self, activity, step, of_the_first, at_least);
}

void wrapped_train(model::CausalLM* self, model::Weights& weights, const model::Batch& batch,
                   float scale) {
  if (trainer_of_run != nullptr) inject(*trainer_of_run);  // otherwise a plan is being made
  real_train(self, weights, batch, scale);
}

/// Pipeline stages do not call CausalLM::train().
void wrapped_forward_backward(train::Engine* self, std::span<const model::Batch> micro_batches,
                              float scale, const std::function<void()>& on_micro_batch) {
  if (trainer_of_run != nullptr && self->pipeline) inject(*trainer_of_run);
  real_forward_backward(self, micro_batches, scale, on_micro_batch);
}

void wrapped_weight_gradient(device::Stream& stream, Tensor dw, Tensor dy, Tensor x,
                             Accumulate accumulate) {
  real_weight_gradient(stream, dw, dy, x, accumulate);
  if (std::exchange(next_gradient_is_wrong, false)) flip_bit(*dw.as<float>(), 20);
}

void wrapped_exchange(const comm::Communicator& group,
                      std::span<const comm::OutgoingMessage> outgoing,
                      std::span<const comm::IncomingMessage> incoming, const char* purpose) {
  static const Fault fault = asked();
  static std::int64_t copies = 0;
  const bool here = group.rank() == fault.rank;
  const bool is_copy = std::string_view(purpose).starts_with("remote replicas");
  const bool is_start = std::string_view(purpose) == "memory checkpoints";
  if (fault.kind == "lost" && is_copy && ++copies == fault.step && here) {
    remove_snapshots();
    std::raise(SIGKILL);  // as if the node's power failed
  }
  if (fault.kind == "vanished" && is_start && here) remove_snapshots();
  real_exchange(group, outgoing, incoming, purpose);
}

}  // namespace llamesh
