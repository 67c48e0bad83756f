#include "train/step/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "comm/mpi/exchange.hpp"
#include "comm/mpi/session.hpp"
#include "core/log.hpp"
#include "core/nan_sign.hpp"
#include "device/device.hpp"
#include "ops/gemm_algorithms.hpp"
#include "ops/ops.hpp"
#include "optim/schedule.hpp"
#include "train/engine/kernel_choice.hpp"

namespace llamesh::train {
namespace {

/// Returns the divisor for a mean over these losses. A batch may consist of prompts only: then no
/// token is in the loss, and the loss is 0.
double divisor_of(std::int64_t losses) {
  return static_cast<double>(std::max<std::int64_t>(losses, 1));
}

}  // namespace

Trainer::Trainer(const comm::Communicator& world, const Setup& setup, comm::DeviceMesh& mesh)
    : world_(world),
      setup_(setup),
      threads_(set_threads(setup.inputs.train.threads, world)),
      mesh_(mesh),
      loss_group_(mesh.group(setup.mesh.data_axes() | setup.mesh.pipeline())),
      loss_ranks_(setup.loss_ranks(world.rank())),
      engine_(setup, mesh),
      feed_(world, setup, mesh, *engine_.context),
      samples_(world, setup),
      norm_(world, setup, engine_.state),
      meter_(world, setup, mesh, engine_, threads_),
      observers_(world, setup, engine_) {
  const Inputs& in = setup.inputs;
  if (setup.is_mesh_reproducible()) check_arithmetic(world);
  choose_bf16_products(world, in.precision.parameters, in.train.reproducible);
  use_linear_precision(world, in.precision);
  ops::use_gemm_sm_count_target(in.train.gemm_sm_count_target);
  meter_.plan_memory();
  if (in.debug.contract || std::getenv("LLAMESH_DEBUG_CONTRACT") != nullptr)
    mesh_.keep_fingerprints();
}

void Trainer::start() {
  draw(sharding::ShardedState::Units::all);
  resume_from(0, 0);
  if (setup_.inputs.data.pairs) use_references(compute_references());
}

void Trainer::draw(sharding::ShardedState::Units units) {
  const Inputs& in = setup_.inputs;
  engine_.state.initialize(in.run.seed, static_cast<float>(in.model.initializer_range), units);
}

void Trainer::resume_from(std::int64_t step, std::int64_t tokens) {
  step_ = step;
  tokens_ = tokens;
  if (engine_.outer && step == 0) engine_.outer->start();
  on_master_weights_loaded();
  world_.barrier("the weights to start with");  // ranks on a node gather from one another's memory
  feed_.start_after(step);
}

void Trainer::restore_exchanges(const std::optional<optim::PendingExchanges>& exchanges) {
  comm::agree(world_, [&] {
    if (engine_.outer) engine_.outer->restore(exchanges);
  });
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
  const auto codes = in.model.has_coded_base()
                         ? fmt::format(", matrices in {}", name_in_inputs(in.model.lora->base))
                         : "";
  return fmt::format("{} parameters{} in {}, mesh {}, {}, {}, {} thread{} per rank{}{}",
                     setup_.table->numel(),
                     frozen == 0 ? "" : fmt::format(" ({} frozen{})", frozen, codes),
                     sharding::describe(in.precision), comm::to_string(setup_.mesh),
                     sharding::name_of(in.sharding.strategy), device::description(), threads_,
                     threads_ == 1 ? "" : "s", peak ? ", " + peak->describe() : "",
                     products.empty() ? "" : ", bf16 matmuls: " + products);
}

StepRecord Trainer::train_step(const OnProgress& on_progress, const Request& request,
                               const Repair& repair) {
  meter_.begin_step();
  const auto counts = feed_.read_step();
  meter_.note_wait_for_data(feed_.seconds_waited());
  StepRecord record{.step = step_ + 1};
  auto parts = run_passes(record, counts, on_progress, request);
  if (!record.is_finite() && repair()) {
    engine_.drop_gradients();
    parts = run_passes(record, counts, on_progress, request);
  }
  meter_.begin_update();
  observers_.after_passes(record, parts);

  const Inputs& in = setup_.inputs;
  record.lr = optim::learning_rate(in.schedule, in.optimizer.lr, step_, in.train.steps);
  if (in.optimizer.name == optim::OptimizerName::muon)
    record.lr_muon = optim::learning_rate(in.schedule, in.optimizer.muon.lr, step_, in.train.steps);
  if (record.skipped.empty())
    engine_.update(record.lr, norm_.of_replica(parts), record.step);
  else
    engine_.drop_gradients();
  engine_.exchange_replicas(record.step, in.train.steps);

  step_ = record.step;
  record.tokens = tokens_ += counts.tokens;
  record.request = std::ranges::max(parts, {}, &StepPart::request).request;
  meter_.end_step(record, parts);
  return record;
}

/// Runs the step's passes, again if the observers ask for it. Returns all ranks' parts of the
/// record, and sets its loss and gradient norm.
std::vector<StepPart> Trainer::run_passes(StepRecord& record, const StepCounts& counts,
                                          const OnProgress& on_progress, const Request& request) {
  const float scale = 1.0F / static_cast<float>(divisor_of(counts.losses_in_replica));
  for (bool repeated = false;; repeated = true) {
    const auto batches = feed_.micro_batches();
    observers_.before_passes(record.step, batches, scale, on_progress);
    engine_.forward_backward(batches, scale, [&] {
      observers_.after_micro_batch();
      on_progress();
    });
    auto parts = exchange(request);
    mesh_.check_fingerprints();
    if (!observers_.must_repeat(record, parts, repeated)) {
      sum_up(record, parts, counts.losses);
      return parts;
    }
    engine_.drop_gradients();
  }
}

/// All-gathers each rank's part of the record, in one collective. No rank updates its master
/// weights before it: other ranks' backward passes read those in shared memory.
std::vector<StepPart> Trainer::exchange(const Request& request) {
  StepPart mine;
  norm_.contribute(mine);  // waits for the passes
  mine.loss = engine_.model.take_loss();
  mine.pairs = sum_of(engine_.model.take_pairs());
  mine.measured = meter_.sample();
  mine.request = request(mine.measured.seconds);
  observers_.contribute(mine);
  mine.broken = !mesh_.healthy();  // the norm has waited for the step's last collective
  auto parts = comm::all_gather(world_, mine,
                                "the loss, the gradient norm and the measurements of the step");
  if (std::ranges::any_of(parts, &StepPart::broken))
    throw comm::PeerFailure(ExitCode::stopped_early);  // reported where it broke
  return parts;
}

/// Sets the record's means and gradient norm, with the same bits on every rank.
void Trainer::sum_up(StepRecord& record, const std::vector<StepPart>& parts,
                     std::int64_t losses) const {
  double loss = 0;
  PairSums pairs;
  for (const int rank : loss_ranks_) {
    const auto& part = parts[static_cast<std::size_t>(rank)];
    loss += part.loss;
    pairs += part.pairs;
  }
  record.loss = without_nan_sign(loss / divisor_of(losses));
  set_means(pairs, record);
  record.grad_norm = without_nan_sign(norm_.of(parts));
}

/// Calls run(first, count) for batches that pass the pipeline's stages together.
template <class Run>
void Trainer::run_batches(std::int64_t batches, const OnProgress& on_progress, const Run& run) {
  const std::int64_t at_once = setup_.pipeline.chunks > 1 ? setup_.pipeline.stages : 1;
  for (std::int64_t first = 0; first < batches; first += at_once) {
    run(first, std::min(at_once, batches - first));
    on_progress();
  }
}

StepRecord Trainer::evaluate(const OnProgress& on_progress, std::size_t set) {
  run_batches(feed_.validation_batches(set), on_progress,
              [&](std::int64_t first, std::int64_t count) {
                engine_.evaluate(feed_.read_validation(set, first, count));
              });
  const double loss = engine_.model.take_loss();  // waits for the last collective
  const auto losses = static_cast<double>(feed_.end_validation());
  StepRecord record{.step = step_};
  record.loss = without_nan_sign(loss_group_.sum(loss, "the loss") / losses);
  if (!setup_.inputs.data.pairs) return record;
  PairSums pairs;
  for (const auto& part :
       comm::all_gather(loss_group_, sum_of(engine_.model.take_pairs()), "sums over pairs"))
    pairs += part;
  set_means(pairs, record);
  return record;
}

PairReferences Trainer::compute_references(PairReferences known, const OnProgress& on_progress) {
  struct Found {
    std::size_t stream;
    std::int64_t pair;
    std::array<float, 2> log_probs;
  };
  on_master_weights_loaded();
  world_.barrier("the reference model's weights");
  feed_.use_references({});
  const auto streams = pair_streams(setup_);
  known.resize(streams.size());
  std::vector<Found> mine;
  for (std::size_t stream = 0; stream < streams.size(); ++stream) {
    if (!known[stream].empty()) continue;
    run_batches(feed_.reference_batches(stream), on_progress,
                [&](std::int64_t first, std::int64_t count) {
                  engine_.evaluate(feed_.read_pairs(stream, first, count));
                  const auto results = engine_.model.take_pairs();  // on one rank of several
                  const auto pairs = feed_.pairs_read();
                  for (std::size_t i = 0; i < results.size(); ++i)
                    mine.push_back({stream, pairs[i].number, results[i].log_probs});
                });
    engine_.model.take_loss();
    feed_.end_validation();
  }
  for (std::size_t stream = 0; stream < streams.size(); ++stream)
    if (known[stream].empty())
      known[stream].resize(static_cast<std::size_t>(2 * streams[stream]->pairs()));
  for (const auto& [stream, pair, log_probs] : comm::all_gather_lists(world_, mine))
    std::ranges::copy(log_probs, known[stream].begin() + 2 * pair);
  return known;
}

std::vector<SampleText> Trainer::write_samples(const OnProgress& on_progress) {
  return samples_.write(engine_, on_progress);
}

void Trainer::check_weights() const {
  const auto& masters = engine_.state.masters();
  std::vector<Tensor> shards;
  std::ranges::copy_if(masters.shards, std::back_inserter(shards), &Tensor::operator bool);
  const double squares = ops::sum_of_squares(engine_.state.stream(), shards);
  comm::agree(world_, [&] {
    if (!std::isfinite(squares))
      fail(ExitCode::no_progress,
           "step {} is not saved: its update made weights that are not finite; the run diverged; "
           "lower optimizer.lr or lengthen schedule.warmup_steps",
           step_);
  });
}

}  // namespace llamesh::train
