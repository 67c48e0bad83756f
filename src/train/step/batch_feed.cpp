#include "train/step/batch_feed.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "comm/mpi/exchange.hpp"
#include "comm/mpi/session.hpp"
#include "core/clock.hpp"
#include "device/device.hpp"

namespace llamesh::train {
namespace {

std::int64_t valid_targets(const data::TokenBatch& batch) {
  return std::ranges::count_if(batch.targets, [](std::int32_t target) { return target >= 0; });
}

/// Sums number `which` over some ranks.
std::int64_t sum_over(const std::vector<int>& ranks, std::size_t which,
                      const std::vector<std::array<std::int64_t, 2>>& by_rank) {
  std::int64_t sum = 0;
  for (const int rank : ranks) sum += by_rank[static_cast<std::size_t>(rank)][which];
  return sum;
}

}  // namespace

BatchFeed::BatchFeed(const comm::Communicator& world, const Setup& setup,
                     const comm::DeviceMesh& mesh, const model::ContextParallel& context)
    : world_(world),
      setup_(setup),
      mesh_(mesh),
      context_(context),
      data_ranks_(setup.mesh.group(setup.mesh.data_axes(), world.rank())),
      replica_ranks_(setup.mesh.group(setup.mesh.gradient_axes(), world.rank())),
      micro_batches_(static_cast<std::size_t>(setup.micro_batches), empty_batch()) {
  for (const auto& tokens : setup.validation_tokens)
    validation_.push_back(setup.validation_data(tokens, world.rank()));
  if (!setup.inputs.data.pairs) return;
  constexpr std::int64_t all = 0;
  for (const auto* tokens : pair_streams(setup))
    all_pairs_.emplace_back(*tokens, setup.batch_partition(world.rank()), all);
}

void BatchFeed::start_after(std::int64_t step) {
  loader_.emplace(*setup_.train_tokens, setup_.batch_partition(world_.rank()),
                  setup_.inputs.run.seed, step);
}

BatchFeed::Counts BatchFeed::counts_of(const data::TokenBatch& batch) const {
  return {valid_targets(batch), context_.rank() == 0 ? std::ssize(batch.pairs) : 0};
}

StepCounts BatchFeed::read_step() {
  expects(loader_.has_value(), "a step before start_after()");
  auto loaded = std::chrono::steady_clock::now();
  const auto load = [&] {
    Counts counts = {};
    for (auto& batch : micro_batches_) {
      take(batch, loader_->next());
      const auto more = counts_of(batch);
      for (const std::size_t i : {0, 1}) counts[i] += more[i];
    }
    loaded = std::chrono::steady_clock::now();
    return counts;
  };
  const auto counts = comm::agree_and_gather(world_, load, "whether the data was read");
  seconds_waited_ = seconds_since(loaded);
  const std::size_t losses = setup_.inputs.data.pairs ? 1 : 0;
  return {.tokens = sum_over(data_ranks_, 0, counts),
          .losses = sum_over(data_ranks_, losses, counts),
          .losses_in_replica = sum_over(replica_ranks_, losses, counts)};
}

std::vector<model::Batch> BatchFeed::read_validation(std::size_t set, std::int64_t first,
                                                     std::int64_t count) {
  const auto sources = setup_.train_tokens->sources();
  return read(validation_.at(set), sources + set, first, count);
}

std::vector<model::Batch> BatchFeed::read_pairs(std::size_t stream, std::int64_t first,
                                                std::int64_t count) {
  return read(all_pairs_.at(stream), stream, first, count);
}

std::vector<model::Batch> BatchFeed::read(const data::ValidationData& data, std::size_t stream,
                                          std::int64_t first, std::int64_t count) {
  validation_batches_.resize(static_cast<std::size_t>(count), empty_batch());
  for (auto& batch : validation_batches_) {
    read_batch(data, first++, batch);
    for (auto& pair : batch.pairs) pair.source = stream;
  }
  return to_device(validation_batches_);
}

std::vector<data::PairOfBatch> BatchFeed::pairs_read() const {
  std::vector<data::PairOfBatch> pairs;
  for (const auto& batch : validation_batches_)
    pairs.insert(pairs.end(), batch.pairs.begin(), batch.pairs.end());
  return pairs;
}

/// If data cannot be read, the other ranks do not know: this one joins their collectives to the
/// end, with empty batches.
void BatchFeed::read_batch(const data::ValidationData& data, std::int64_t k,
                           data::TokenBatch& batch) {
  const Inputs& in = setup_.inputs;
  try {
    data::TokenBatch whole(in.train.micro_batch, in.data.sequence_length);
    if (!unreadable_) data.read(k, whole);
    take(batch, whole);
  } catch (const std::exception&) {
    unreadable_ = std::current_exception();
    batch = empty_batch();
  }
  const auto more = counts_of(batch);
  for (const std::size_t i : {0, 1}) validated_[i] += more[i];
}

std::int64_t BatchFeed::end_validation() {
  const auto counts = std::exchange(validated_, {});
  const auto unreadable = std::exchange(unreadable_, {});
  const auto read = [&] {  // several ranks may read a bad file
    if (!mesh_.healthy()) throw comm::PeerFailure(ExitCode::stopped_early);
    if (unreadable) std::rethrow_exception(unreadable);
    return counts;
  };
  return sum_over(data_ranks_, setup_.inputs.data.pairs ? 1 : 0,
                  comm::agree_and_gather(world_, read, "whether the data was read"));
}

data::TokenBatch BatchFeed::empty_batch() const {
  return {setup_.inputs.train.micro_batch, setup_.row_length()};
}

/// Fills `batch` with the tokens of whole sequences that this rank has.
void BatchFeed::take(data::TokenBatch& batch, const data::TokenBatch& whole) const {
  const auto positions = context_.positions(batch.sequence_length);
  batch.set_part(whole, {positions.first, positions.second});
}

/// Copies values of each batch, (B, T) int32, to the device.
std::vector<Tensor> BatchFeed::tensors(std::span<data::TokenBatch> batches,
                                       std::vector<std::int32_t> data::TokenBatch::*values_of,
                                       device::Staging& staging) const {
  std::vector<Tensor> all;
  for (auto& batch : batches) {
    auto& values = batch.*values_of;
    all.push_back(values.empty() ? Tensor()
                                 : Tensor(values.data(), DType::i32,
                                          {setup_.inputs.train.micro_batch, setup_.row_length()}));
  }
  return staging.to_device_async(device::compute_stream(), std::move(all));
}

std::vector<model::Batch> BatchFeed::to_device(std::span<data::TokenBatch> batches) {
  const auto tokens = tensors(batches, &data::TokenBatch::tokens, ids_);
  const auto targets = tensors(batches, &data::TokenBatch::targets, targets_);
  const auto starts = tensors(batches, &data::TokenBatch::document_starts, document_starts_);
  std::vector<model::Batch> on_device;
  for (std::size_t i = 0; i < batches.size(); ++i)
    on_device.push_back({tokens[i], targets[i], starts[i]});
  if (setup_.inputs.data.pairs) add_pairs(batches, on_device);
  return on_device;
}

/// Adds the pairs in batches to those on the device. Their numbers have room for as many as
/// possible, so that memory does not depend on the data.
void BatchFeed::add_pairs(std::span<data::TokenBatch> batches,
                          std::vector<model::Batch>& on_device) {
  const auto most = static_cast<std::size_t>(setup_.max_pairs());
  numbers_of_pairs_.resize(std::max(numbers_of_pairs_.size(), batches.size()));
  std::vector<Tensor> hosts;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    auto& numbers = numbers_of_pairs_[i];
    numbers.assign(4 * most, 0.0F);
    for (std::size_t p = 0; p < batches[i].pairs.size(); ++p) {
      const auto& [stream, number, tokens] = batches[i].pairs[p];
      for (const std::size_t side : {0, 1}) {
        if (!references_.empty())
          numbers[2 * p + side] =
              references_.at(stream).at(2 * static_cast<std::size_t>(number) + side);
        numbers[2 * most + 2 * p + side] = static_cast<float>(tokens[side]);
      }
    }
    hosts.push_back({numbers.data(), DType::f32, {std::ssize(numbers)}});
  }
  const auto numbers = pair_numbers_.to_device_async(device::compute_stream(), std::move(hosts));
  const auto documents = tensors(batches, &data::TokenBatch::documents, documents_);
  const auto& train = setup_.inputs.train;
  for (std::size_t i = 0; i < batches.size(); ++i) {
    const auto count = 2 * std::ssize(batches[i].pairs);
    on_device[i].pairs = {
        .documents = documents[i],
        .references = numbers[i].slice(0, count),
        .tokens = numbers[i].slice(2 * setup_.max_pairs(), count),
        .loss = train.objective == Objective::ipo ? ops::PairLoss::ipo : ops::PairLoss::dpo,
        .beta = static_cast<float>(train.beta)};
  }
}

}  // namespace llamesh::train
