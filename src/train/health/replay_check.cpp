#include "train/health/replay_check.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <map>
#include <utility>

#include "comm/mpi/exchange.hpp"

namespace llamesh::train {
namespace {

/// Returns the axes along which ranks exchange values within a micro-batch. The load-balancing loss
/// counts the choices of all ranks.
comm::AxisSet exchanging_axes(const Setup& setup) {
  const auto& model = setup.inputs.model;
  const bool counts_over_all =
      model.num_experts > 0 && model.output_router_logits && model.router_aux_loss_coef > 0;
  return setup.mesh.without_ones(
      counts_over_all ? setup.mesh.all()
                      : setup.mesh.named({"pipeline", "tensor", "context", "expert"}));
}

/// Adds a rank's difference to the fault of its group.
void add_to(ReplayFault& fault, int rank, std::int64_t difference) {
  if (difference == 0 || (!fault.ranks.empty() && difference > fault.difference)) return;
  if (difference < fault.difference) fault.ranks.clear();
  fault.difference = difference;
  fault.ranks.push_back(rank);
}

}  // namespace

std::vector<ReplayFault> find_faults(std::span<const std::int64_t> differences,
                                     comm::AxisSet exchange, const comm::ParallelDims& dims) {
  std::vector<ReplayFault> found;
  for (int rank = 0; rank < dims.ranks(); ++rank) {
    const auto members = dims.group(exchange, rank);
    if (members.front() != rank) continue;
    std::map<int, ReplayFault> by_stage;
    for (const int member : members)
      add_to(by_stage[dims.rank_in_group(dims.pipeline(), member)], member,
             differences[static_cast<std::size_t>(member)]);
    ReplayFault fault;
    for (const auto& [stage, of_stage] : by_stage) {
      if (fault.ranks.empty()) fault.difference = of_stage.difference;
      fault.ranks.insert(fault.ranks.end(), of_stage.ranks.begin(), of_stage.ranks.end());
    }
    if (!fault.ranks.empty()) found.push_back(std::move(fault));
  }
  return found;
}

ReplayCheck::ReplayCheck(const comm::Communicator& world, const Setup& setup, Engine& engine)
    : world_(world), setup_(setup), engine_(engine), exchange_(exchanging_axes(setup)) {}

std::string ReplayCheck::describe() const {
  const auto every = setup_.inputs.debug.replay_every;
  if (every == 0) return "";
  return fmt::format("every {} steps, the first micro-batch is computed twice and compared", every);
}

bool ReplayCheck::due(std::int64_t step) const {
  const auto every = setup_.inputs.debug.replay_every;
  return every > 0 && step % every == 0;
}

/// Hashes the gradients of the first micro-batch's passes, which follow. In the chunks of a
/// pipeline stage, passes of others come between them.
void ReplayCheck::record_into(Results& results) {
  results = {};
  engine_.fsdp.observe_gradients(
      [&](const sharding::MicroBatch& micro_batch, std::size_t unit, const Tensor& gradients) {
        if (!micro_batch.first()) return note_own_loss();
        RunningHash hash;
        hasher_.add(hash, device::compute_stream(), gradients);
        results.units.push_back(unit);
        results.hashes.push_back(hash.value());
      });
}

/// Takes the first micro-batch's loss, before the next one's is added.
void ReplayCheck::note_own_loss() {
  if (!own_.loss) own_.loss = engine_.model.loss_so_far();
}

void ReplayCheck::replay(const model::Batch& first, float scale, std::int64_t micro_batches) {
  record_into(replayed_);
  engine_.replay(first, scale, micro_batches);
  replayed_.loss = engine_.model.take_loss();
  engine_.model.take_pairs();  // the step's passes count them
  record_into(own_);
  comparing_ = true;
  difference_ = 0;
}

void ReplayCheck::on_micro_batch() {
  if (!std::exchange(comparing_, false)) return;
  engine_.fsdp.observe_gradients({});
  note_own_loss();
  difference_ = compare();
}

std::int64_t ReplayCheck::compare() const {
  expects(own_.units == replayed_.units, "a micro-batch has completed other units when repeated");
  // NaNs are compared like numbers.
  if (std::bit_cast<std::uint64_t>(*own_.loss) != std::bit_cast<std::uint64_t>(*replayed_.loss))
    return 1;
  const auto [own, replayed] = std::ranges::mismatch(own_.hashes, replayed_.hashes);
  if (own == own_.hashes.end()) return 0;
  const auto position = own - own_.hashes.begin();
  return 2 + position * std::ssize(setup_.layout->units()) +
         static_cast<std::int64_t>(own_.units[static_cast<std::size_t>(position)]);
}

std::string ReplayCheck::judge(std::int64_t step, std::span<const std::int64_t> differences,
                               OnMismatch on_mismatch) {
  const auto found = find_faults(differences, exchange_, setup_.mesh);
  if (found.empty()) return "";
  std::vector<std::string> lines;
  for (const auto& fault : found) lines.push_back(describe(fault));
  auto text = fmt::format("in step {}, {}", step, fmt::join(lines, "; "));
  if (on_mismatch == OnMismatch::heal) {
    ++times_healed_;
    last_healed_ = text;
    return text + "; the step's forward and backward passes are computed again";
  }
  const bool is_repeated = setup_.inputs.debug.on_mismatch == OnMismatch::heal;
  const auto certain =
      std::ranges::find_if(found, [&](const auto& fault) { return on_one_host(fault); });
  const auto& reported = certain == found.end() ? found.front() : *certain;
  comm::agree(world_, [&] {
    if (world_.rank() != reported.ranks.front()) return;
    fail(ExitCode::stopped_early,
         "{}{}; a processor or memory is faulty, or this is a bug: nothing is saved, and the next "
         "start continues from the newest checkpoint",
         text, is_repeated ? ", also when the passes were computed again" : "");
  });
  return text;
}

std::string ReplayCheck::healed() const {
  if (times_healed_ == 0) return "";
  return fmt::format("passes were computed again {} since the start, last because {}",
                     times_healed_ == 1 ? "once" : fmt::format("{} times", times_healed_),
                     last_healed_);
}

bool ReplayCheck::on_one_host(const ReplayFault& fault) const {
  const auto host_of = [&](int rank) {
    return setup_.topology.host_of[static_cast<std::size_t>(rank)];
  };
  return std::ranges::all_of(
      fault.ranks, [&](int rank) { return host_of(rank) == host_of(fault.ranks.front()); });
}

std::string ReplayCheck::describe(std::int64_t difference) const {
  if (difference == 1) return "first in the loss";
  const auto& units = setup_.layout->units();
  const auto unit = static_cast<std::size_t>((difference - 2) % std::ssize(units));
  return fmt::format("first in the gradient of {}", units[unit].name);
}

/// Formats "rank 2 on node1 computed different bits for the same micro-batch: first in the loss".
std::string ReplayCheck::describe(const ReplayFault& fault) const {
  const auto along = comm::to_string(exchange_, setup_.mesh);
  const auto& host_of = setup_.topology.host_of;
  if (fault.ranks.size() == 1)
    return fmt::format("rank {} on {} computed different bits for the same micro-batch, {}",
                       fault.ranks.front(), host_of[static_cast<std::size_t>(fault.ranks.front())],
                       describe(fault.difference));
  if (on_one_host(fault))
    return fmt::format(
        "ranks {} on {}, which exchange values along {}, computed different bits for the same "
        "micro-batch, {}",
        fmt::join(fault.ranks, ", "), host_of[static_cast<std::size_t>(fault.ranks.front())], along,
        describe(fault.difference));
  std::vector<std::string> named;
  for (const int rank : fault.ranks)
    named.push_back(fmt::format("rank {} on {}", rank, host_of[static_cast<std::size_t>(rank)]));
  return fmt::format(
      "one of {}, which exchange values along {}, is at fault: their bits differ for the same "
      "micro-batch, {}",
      fmt::join(named, ", "), along, describe(fault.difference));
}

}  // namespace llamesh::train
