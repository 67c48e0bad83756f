#include "train/step/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <utility>

#include "comm/mpi/exchange.hpp"
#include "comm/mpi/session.hpp"
#include "core/clock.hpp"
#include "core/log.hpp"
#include "device/device.hpp"
#include "ops/gemm_algorithms.hpp"
#include "ops/ops.hpp"
#include "optim/schedule.hpp"
#include "train/run/setup.hpp"
#include "train/step/kernel_choice.hpp"

namespace llamesh::train {
namespace {

std::int64_t valid_targets(const data::TokenBatch& batch) {
  return std::ranges::count_if(batch.targets, [](std::int32_t target) { return target >= 0; });
}

// Sum over a group of ranks in rank order, so that every rank in it gets the same bits.

std::int64_t sum_over(const std::vector<int>& ranks, const std::vector<std::int64_t>& by_rank) {
  std::int64_t sum = 0;
  for (const int rank : ranks) sum += by_rank[static_cast<std::size_t>(rank)];
  return sum;
}

template <class Part>
double sum_over(const std::vector<int>& ranks, const std::vector<Part>& by_rank,
                double Part::*number) {
  double sum = 0;
  for (const int rank : ranks) sum += by_rank[static_cast<std::size_t>(rank)].*number;
  return sum;
}

}  // namespace

Trainer::Trainer(const comm::Communicator& world, const Setup& setup, comm::DeviceMesh& mesh)
    : world_(world),
      setup_(setup),
      threads_(set_threads(setup.inputs.train.threads, world)),
      mesh_(mesh),
      data_group_(mesh.group(setup.mesh.gradient_axes())),
      data_ranks_(setup.mesh.group(setup.mesh.gradient_axes(), world.rank())),
      engine_(setup, mesh),
      micro_batches_(static_cast<std::size_t>(setup.micro_batches),
                     data::TokenBatch(setup.inputs.train.micro_batch, setup.row_length())),
      meter_(world, setup, mesh, engine_, threads_),
      replay_check_(world, setup, engine_),
      nonfinite_(setup.inputs.train.on_nonfinite, setup.topology.host_of) {
  const Inputs& in = setup.inputs;
  for (const auto& tokens : setup.validation_tokens)
    validation_.push_back(setup.validation_data(tokens, world.rank()));
  choose_bf16_products(world, in.precision.parameters);
  ops::use_gemm_sm_count_target(in.train.gemm_sm_count_target);
  meter_.plan_memory();
  if (in.debug.contract || std::getenv("LLAMESH_DEBUG_CONTRACT") != nullptr)
    mesh_.keep_fingerprints();
}

void Trainer::start() {
  draw(sharding::ShardedState::Units::all);
  resume_from(0, 0);
}

void Trainer::draw(sharding::ShardedState::Units units) {
  const Inputs& in = setup_.inputs;
  engine_.state.initialize(in.run.seed, static_cast<float>(in.model.initializer_range), units);
}

void Trainer::resume_from(std::int64_t step, std::int64_t tokens) {
  step_ = step;
  tokens_ = tokens;
  on_master_weights_loaded();
  world_.barrier("the weights to start with");  // ranks on a node gather from one another's memory
  loader_.emplace(*setup_.train_tokens, setup_.batch_partition(world_.rank()),
                  setup_.inputs.run.seed, step);
}

std::string Trainer::bf16_products() const {
  return recorded_bf16_products(setup_.inputs.precision.parameters);
}

void Trainer::keep_bf16_products(const std::string& recorded) {
  if (train::keep_bf16_products(world_, setup_.inputs.precision.parameters, recorded))
    meter_.on_bf16_products_changed();
}

std::string Trainer::describe() const {
  const Inputs& in = setup_.inputs;
  const auto products = bf16_products();
  const auto& peak = meter_.gemm_peak();
  const auto frozen = setup_.table->numel() - setup_.table->trained_numel();
  return fmt::format("{} parameters{} in {}, mesh {}, {}, {}, {} thread{} per rank{}{}",
                     setup_.table->numel(), frozen == 0 ? "" : fmt::format(" ({} frozen)", frozen),
                     name_of(in.precision.parameters), comm::to_string(setup_.mesh),
                     sharding::name_of(in.sharding.strategy), device::description(), threads_,
                     threads_ == 1 ? "" : "s", peak ? ", " + peak->describe() : "",
                     products.empty() ? "" : ", bf16 matmuls: " + products);
}

StepRecord Trainer::train_step(const OnProgress& on_progress, const Request& request,
                               const Repair& repair) {
  meter_.begin_step();
  const std::int64_t valid_tokens = load_micro_batches();
  // A batch may consist of prompts only: then no token is in the loss, and the loss is 0.
  const auto divisor = static_cast<double>(std::max<std::int64_t>(valid_tokens, 1));
  StepRecord record;
  std::vector<StepPart> parts;
  const auto passes_are_finite = [&] {
    return run_passes(record, parts, divisor, on_progress, request);
  };
  const bool finite = passes_are_finite() || (repair() && passes_are_finite());
  meter_.begin_update();
  if (setup_.inputs.model.num_experts > 0) record_experts(record);

  if (finite)
    nonfinite_.on_finite();
  else
    decide_on_nonfinite(record, parts);
  const Inputs& in = setup_.inputs;
  record.lr = optim::learning_rate(in.schedule, in.optimizer.lr, step_, in.train.steps);
  if (finite) engine_.update(record.lr, record.grad_norm, step_ + 1);

  record.step = ++step_;
  record.tokens = tokens_ += valid_tokens;
  std::vector<StepMeter::Sample> by_rank;
  for (const auto& part : parts) {
    record.request = std::max(record.request, part.request);
    by_rank.push_back(part.measured);
  }
  meter_.end_step(record, by_rank);
  return record;
}

/// Runs the step's passes and fills the record's loss and gradient norm. If the replay of the first
/// micro-batch differed and that is to be healed, runs them once more. Returns true if both numbers
/// are finite.
bool Trainer::run_passes(StepRecord& record, std::vector<StepPart>& parts, double divisor,
                         const OnProgress& on_progress, const Request& request) {
  const float scale = 1.0F / static_cast<float>(divisor);
  for (auto on_mismatch = setup_.inputs.debug.on_mismatch;; on_mismatch = OnMismatch::stop) {
    const auto batches = as_tensors(micro_batches_);
    if (replay_check_.due(step_ + 1)) {
      replay_check_.replay(batches.front(), scale, std::ssize(batches));
      on_progress();
    }
    engine_.forward_backward(batches, scale, [&] {
      replay_check_.on_micro_batch();
      on_progress();
    });
    parts = exchange(request);
    mesh_.check_fingerprints();
    if (replay_agrees(record, parts, on_mismatch)) return sum_up(record, parts, divisor);
  }
}

/// Returns true if the replay agrees on all ranks. Throws if a difference is not to be healed.
bool Trainer::replay_agrees(StepRecord& record, const std::vector<StepPart>& parts,
                            OnMismatch on_mismatch) {
  std::vector<std::int64_t> differences;
  for (const auto& part : parts) differences.push_back(part.difference);
  auto line = replay_check_.judge(step_ + 1, differences, on_mismatch);
  if (line.empty()) return true;
  record.healed.push_back(std::move(line));
  return false;
}

/// Takes the step's data from the loader; returns the number of valid targets over all ranks. In
/// one collective the ranks agree on that and on whether reading worked: several ranks may read a
/// bad file.
std::int64_t Trainer::load_micro_batches() {
  expects(loader_.has_value(), "a step before start() or resume_from()");
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
  meter_.note_wait_for_data(seconds_since(loaded));
  return sum_over(data_ranks_, valid);
}

/// All-gathers each rank's part of the record, in one collective. No rank updates its master
/// weights before it: other ranks' backward passes read those in shared memory.
std::vector<Trainer::StepPart> Trainer::exchange(const Request& request) {
  StepPart mine{.squared_norm = optim::squared_norm_share(engine_.state)};  // waits for the passes
  mine.loss = engine_.model.take_loss();
  mine.measured = meter_.sample();
  mine.request = request(mine.measured.seconds);
  mine.difference = replay_check_.difference();
  mine.broken = !mesh_.healthy();  // the norm has waited for the step's last collective
  auto parts = comm::all_gather(world_, mine,
                                "the loss, the gradient norm and the measurements of the step");
  if (std::ranges::any_of(parts, &StepPart::broken))
    throw comm::PeerFailure(ExitCode::stopped_early);  // reported where it broke
  return parts;
}

/// Sets the record's loss and gradient norm. Returns true if both are finite.
bool Trainer::sum_up(StepRecord& record, const std::vector<StepPart>& parts, double divisor) const {
  record.loss = without_nan_sign(sum_over(data_ranks_, parts, &StepPart::loss) / divisor);
  double squared_norm = 0;
  for (const auto& part : parts) squared_norm += part.squared_norm;
  record.grad_norm = without_nan_sign(std::sqrt(squared_norm));
  return std::isfinite(record.loss) && std::isfinite(record.grad_norm);
}

/// Records how the step's tokens were spread over experts. The passes are done.
void Trainer::record_experts(StepRecord& record) {
  const Inputs& in = setup_.inputs;
  const auto sums = engine_.model.take_router_sums();
  record.experts =
      expert_balance(sums, in.model.router_z_loss_coef > 0,
                     in.log.experts == ExpertMetrics::per_layer ? PerLayer::yes : PerLayer::no);
  record.idle_experts = idle_experts_.observe(sums);
}

/// Ends the run, or sets the reason for skipping the update.
void Trainer::decide_on_nonfinite(StepRecord& record, const std::vector<StepPart>& parts) {
  std::vector<double> losses;
  std::vector<double> squared_norms;
  for (const auto& part : parts) {
    losses.push_back(part.loss);
    squared_norms.push_back(part.squared_norm);
  }
  comm::agree(world_, [&] {  // all ranks have the same values, one reports an error
    try {
      record.skipped = nonfinite_.on_nonfinite(step_ + 1, record.loss, record.grad_norm, losses,
                                               squared_norms, replay_check_.healed());
    } catch (const Error& error) {
      if (world_.rank() == NonfiniteSteps::first_rank(losses, squared_norms)) throw;
      throw comm::PeerFailure(error.code());
    }
  });
}

double Trainer::evaluate(const OnProgress& on_progress, std::size_t set) {
  const Inputs& in = setup_.inputs;
  const auto& data = validation_.at(set);
  std::int64_t valid = 0;
  std::exception_ptr unreadable;
  for (std::int64_t k = 0; k < data.batches(); ++k) {
    data::TokenBatch whole(in.train.micro_batch, in.data.sequence_length);
    data::TokenBatch batch(in.train.micro_batch, setup_.row_length());
    try {
      if (!unreadable) data.read(k, whole);
      take(batch, whole);
    } catch (const std::exception&) {
      // The other ranks do not know about the error: this one joins their collectives to the end.
      unreadable = std::current_exception();
      batch = data::TokenBatch(in.train.micro_batch, setup_.row_length());
    }
    engine_.model.evaluate(engine_.fsdp, as_tensors({&batch, 1}).front());
    valid += valid_targets(batch);
    on_progress();
  }
  const double loss = engine_.model.take_loss();  // waits for the last collective
  const auto read = [&] {                         // several ranks may read a bad file
    if (!mesh_.healthy()) throw comm::PeerFailure(ExitCode::stopped_early);
    if (unreadable) std::rethrow_exception(unreadable);
    return valid;
  };
  const std::int64_t all_valid =
      sum_over(data_ranks_, comm::agree_and_gather(world_, read, "whether the data was read"));
  const double all_loss = data_group_.sum(loss, "the loss");
  return without_nan_sign(all_loss / static_cast<double>(all_valid));
}

void Trainer::check_weights() const {
  const auto& masters = engine_.state.masters();
  double squares = 0;
  for (const auto& shard : masters.shards)
    if (shard) squares += ops::sum_of_squares(engine_.state.stream(), shard);
  comm::agree(world_, [&] {
    if (!std::isfinite(squares))
      fail(ExitCode::no_progress,
           "step {} is not saved: its update made weights that are not finite; the run diverged; "
           "lower optimizer.lr or lengthen schedule.warmup_steps",
           step_);
  });
}

/// Fills `batch` with the tokens of whole sequences that this rank has.
void Trainer::take(data::TokenBatch& batch, const data::TokenBatch& whole) const {
  const auto positions = engine_.context->positions(batch.sequence_length);
  batch.set_part(whole, {positions.first, positions.second});
}

/// Copies the batches to the model's device. On a GPU the next call overwrites them, in the compute
/// stream, after the work on them.
std::vector<model::Batch> Trainer::as_tensors(std::span<data::TokenBatch> batches) {
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
