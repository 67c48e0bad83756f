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

std::int64_t sum_over(const std::vector<int>& ranks, const std::vector<std::int64_t>& by_rank) {
  std::int64_t sum = 0;
  for (const int rank : ranks) sum += by_rank[static_cast<std::size_t>(rank)];
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
}

void BatchFeed::start_after(std::int64_t step) {
  loader_.emplace(*setup_.train_tokens, setup_.batch_partition(world_.rank()),
                  setup_.inputs.run.seed, step);
}

ValidTokens BatchFeed::read_step() {
  expects(loader_.has_value(), "a step before start_after()");
  auto loaded = std::chrono::steady_clock::now();
  const auto load = [&] {
    std::int64_t valid = 0;
    for (auto& batch : micro_batches_) {
      take(batch, loader_->next());
      valid += valid_targets(batch);
    }
    loaded = std::chrono::steady_clock::now();
    return valid;
  };
  const auto valid = comm::agree_and_gather(world_, load, "whether the data was read");
  seconds_waited_ = seconds_since(loaded);
  return {sum_over(data_ranks_, valid), sum_over(replica_ranks_, valid)};
}

std::vector<model::Batch> BatchFeed::read_validation(std::size_t set, std::int64_t first,
                                                     std::int64_t count) {
  validation_batches_.resize(static_cast<std::size_t>(count), empty_batch());
  for (auto& batch : validation_batches_) read_validation_batch(set, first++, batch);
  return to_device(validation_batches_);
}

/// If data cannot be read, the other ranks do not know: this one joins their collectives to the
/// end, with empty batches.
void BatchFeed::read_validation_batch(std::size_t set, std::int64_t k, data::TokenBatch& batch) {
  const Inputs& in = setup_.inputs;
  try {
    data::TokenBatch whole(in.train.micro_batch, in.data.sequence_length);
    if (!unreadable_) validation_.at(set).read(k, whole);
    take(batch, whole);
  } catch (const std::exception&) {
    unreadable_ = std::current_exception();
    batch = empty_batch();
  }
  validated_ += valid_targets(batch);
}

std::int64_t BatchFeed::end_validation() {
  const auto valid = std::exchange(validated_, 0);
  const auto unreadable = std::exchange(unreadable_, {});
  const auto read = [&] {  // several ranks may read a bad file
    if (!mesh_.healthy()) throw comm::PeerFailure(ExitCode::stopped_early);
    if (unreadable) std::rethrow_exception(unreadable);
    return valid;
  };
  return sum_over(data_ranks_, comm::agree_and_gather(world_, read, "whether the data was read"));
}

data::TokenBatch BatchFeed::empty_batch() const {
  return {setup_.inputs.train.micro_batch, setup_.row_length()};
}

/// Fills `batch` with the tokens of whole sequences that this rank has.
void BatchFeed::take(data::TokenBatch& batch, const data::TokenBatch& whole) const {
  const auto positions = context_.positions(batch.sequence_length);
  batch.set_part(whole, {positions.first, positions.second});
}

std::vector<model::Batch> BatchFeed::to_device(std::span<data::TokenBatch> batches) {
  const auto tensors = [&](auto values_of, device::Staging& staging) {
    std::vector<Tensor> all;
    for (auto& batch : batches) {
      auto& values = batch.*values_of;
      all.push_back(values.empty()
                        ? Tensor()
                        : Tensor(values.data(), DType::i32,
                                 {setup_.inputs.train.micro_batch, setup_.row_length()}));
    }
    return staging.to_device_async(device::compute_stream(), std::move(all));
  };
  const auto tokens = tensors(&data::TokenBatch::tokens, ids_);
  const auto targets = tensors(&data::TokenBatch::targets, targets_);
  const auto starts = tensors(&data::TokenBatch::document_starts, document_starts_);
  std::vector<model::Batch> on_device;
  for (std::size_t i = 0; i < batches.size(); ++i)
    on_device.push_back({tokens[i], targets[i], starts[i]});
  return on_device;
}

}  // namespace llamesh::train
