#include "train/setup/setup.hpp"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <utility>

#include "checkpoint/format/format.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "checkpoint/models/peft_folder.hpp"
#include "checkpoint/store/location.hpp"
#include "checkpoint/store/store.hpp"
#include "core/file.hpp"
#include "core/philox.hpp"
#include "data/sampler.hpp"
#include "data/validation.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"
#include "model/description/config_json.hpp"
#include "ops/gemm_algorithms.hpp"
#include "optim/optimizer.hpp"
#include "optim/outer_optimizer.hpp"
#include "sharding/compile_spec.hpp"
#include "sharding/tensor_placements.hpp"
#include "train/setup/fewer_stages.hpp"
#include "train/setup/mesh_reproducible.hpp"
#include "train/setup/profiled_steps.hpp"
#include "train/setup/quantized_exchanges.hpp"
#include "train/setup/virtual_ranks.hpp"
#include "train/setup/walltime.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;

/// Limit from kernels, which number a micro-batch's tokens with int32.
constexpr std::int64_t max_tokens_at_once = std::numeric_limits<std::int32_t>::max();

/// Returns the micro-batches per rank and optimizer step.
std::int64_t micro_batches_of(TrainOptions& options, std::int64_t ranks) {
  const std::int64_t at_once = ranks * options.micro_batch;
  if (options.global_batch == 0) options.global_batch = at_once;
  validate(options.global_batch % at_once == 0,
           "train.global_batch {} is not a multiple of {} ranks x train.micro_batch {} = {}; make "
           "it {}, or let ranks share their sequences (mesh.axes.tensor or mesh.axes.context)",
           options.global_batch, ranks, options.micro_batch, at_once,
           (options.global_batch / at_once + 1) * at_once);
  return options.global_batch / at_once;
}

/// Returns the steps that read `epochs` times an epoch's sequences; the last step may reach into
/// the next epoch.
std::int64_t steps_of(const TrainOptions& options, std::int64_t epoch_length) {
  const double sequences =
      std::max(1.0, std::round(options.epochs * static_cast<double>(epoch_length)));
  return static_cast<std::int64_t>(
      std::ceil(sequences / static_cast<double>(options.global_batch)));
}

/// Returns the sets that the run evaluates.
std::vector<ValidationSet> validated_sets(const Inputs& in) {
  return in.evaluate.every_steps > 0 ? in.validation_sets() : std::vector<ValidationSet>();
}

/// Tokenizes all text in the run: each training source, then each validation set. Collective.
std::vector<data::TokenizedText> tokenize(const comm::Communicator& world, const Inputs& in) {
  if (!data::is_tokenized(in.data)) return {};
  return tokenize_once(world, [&] {
    auto tokens = data::TrainingData::tokenize(in.data, in.model.vocab_size);
    const auto sets = validated_sets(in);
    if (sets.empty()) return tokens;
    const auto tokenizer = data::open_fitting_tokenizer(in.data.tokenizer, in.model.vocab_size);
    for (const auto& set : sets)
      tokens.emplace_back(in.data, set.files, in.model.vocab_size, *tokenizer);
    return tokens;
  });
}

data::TokenStream open_validation(data::DataOptions options, const ValidationSet& set,
                                  std::int64_t vocab_size,
                                  std::optional<data::TokenizedText> tokens) {
  options.seed ^= name_hash("validation");  // makes random tokens differ from those for training
  data::TokenStream stream(options, set.files, vocab_size, std::move(tokens));
  validate(data::whole_sequences(stream.size(), options.sequence_length) >= 1,
           "{} has {} tokens, but one sequence needs {} (data.sequence_length + 1); validate on "
           "more, or set data.sequence_length to {} or less",
           stream.describe(), stream.size(), options.sequence_length + 1, stream.size() - 1);
  return stream;
}

/// Checks that the training data and each validation set have targets. One rank is enough, and
/// spares the file system the other ranks' reads of loss masks.
void check_targets(const Setup& setup) {
  setup.train_tokens->check_targets();
  for (const auto& tokens : setup.validation_tokens)
    setup.validation_data(tokens, 0).check_targets();
}

/// Opens the training and validation data. Collective.
void open_data(const comm::Communicator& world, Setup& setup) {
  const Inputs& in = setup.inputs;
  auto tokens = tokenize(world, in);
  comm::agree(world, [&] {
    const auto sets = validated_sets(in);
    const std::size_t sources = tokens.empty() ? 0 : tokens.size() - sets.size();
    setup.train_tokens.emplace(in.data, in.model.vocab_size, std::span(tokens).first(sources));
    for (std::size_t i = 0; i < sets.size(); ++i)
      setup.validation_tokens.push_back(
          open_validation(in.data, sets[i], in.model.vocab_size,
                          tokens.empty() ? std::nullopt : std::optional(tokens[sources + i])));
  });
  comm::agree(world, [&] {
    if (world.rank() == 0) check_targets(setup);
  });
}

/// Checks that the run folder is a folder, or that one can be made there.
void check_run_folder(const fs::path& folder) {
  std::error_code ignored;
  auto at = folder;
  while (!at.empty() && !fs::exists(fs::status(at, ignored))) at = at.parent_path();
  validate(at.empty() || fs::is_directory(at, ignored),
           "run.folder: '{}' is not a folder; name another run.folder", at.string());
}

/// Checks that the file for node_exporter can be replaced. The launch creates the run folder, so it
/// need not exist.
void check_openmetrics(const fs::path& file, const fs::path& run_folder) {
  if (file.empty()) return;
  std::error_code ignored;
  validate(!fs::is_directory(fs::symlink_status(file, ignored)),
           "log.openmetrics: '{}' is a folder; name a file", file.string());
  const auto normal = [](const fs::path& path) { return fs::absolute(path).lexically_normal(); };
  if (normal(file) == normal(run_folder / file.filename())) return;
  const auto folder = file.parent_path() / ".";
  validate(::access(folder.c_str(), W_OK | X_OK) == 0,
           "log.openmetrics: '{}' cannot be written: {}; name a file in a folder in which you may "
           "write",
           file.string(), std::strerror(errno));
}

std::string folder_of(const Inputs& in) {
  return in.run.folder.empty() ? "runs/" + in.run.name : in.run.folder;
}

bool has_own_checkpoints(const Inputs& in) {
  return !checkpoint::committed_checkpoints(folder_of(in) + "/checkpoints").empty();
}

/// Returns true if the run has checkpoints of its own, or may have some in memory. Collective.
bool goes_on(const comm::Communicator& world, const Inputs& in) {
  return comm::on_rank_0(world, [&] {
           const auto folder = folder_of(in);
           check_run_folder(folder);
           std::error_code ignored;
           const bool may_be_in_memory = fs::exists(
               fs::path(folder) / "checkpoints" / checkpoint::run_identity_name, ignored);
           return has_own_checkpoints(in) || may_be_in_memory ? "yes" : "";
         }) == "yes";
}

/// Returns the inputs for the ranks that are left to a run that goes on: some of what they ask for
/// would be refused in a new run. Collective.
Inputs inputs_for_what_is_left(const comm::Communicator& world, const Inputs& inputs,
                               const comm::Topology& topology) {
  auto in = inputs;
  if (topology.nodes == 1 && quantizes_between_nodes(in) && goes_on(world, in)) {
    in = unquantized(std::move(in));
    if (world.rank() == 0)
      spdlog::warn(
          "all ranks are on one node now, so nothing is sent to other nodes: sharding.gather and "
          "reduce_dtype count as auto");
  }
  if (has_too_many_stages(in, world.size()) && goes_on(world, in)) {
    in = with_fewer_stages(in, topology);
    if (world.rank() == 0 && in.mesh.pipeline < inputs.mesh.pipeline)
      spdlog::warn("{} ranks are left, too few for mesh.axes.pipeline {}: the run goes on with {}",
                   world.size(), inputs.mesh.pipeline, in.mesh.pipeline);
  }
  return in;
}

/// Checks that the reference model has the shape of the trained one.
void check_reference(const Inputs& in, const model::ParameterTable& table) {
  const fs::path folder = in.reference.hf;
  std::error_code ignored;
  validate(fs::is_directory(folder, ignored),
           "reference.hf: {} is not a folder; give a Hugging Face folder{}", folder.string(),
           did_you_mean_path(folder));
  const auto change = model::difference(model::read_config_json(folder), in.model.base());
  validate(
      change.empty(),
      "reference.hf: {} holds another model: {} in the trained one; give one of the same shape",
      folder.string(), change);
  checkpoint::HfModel(folder, in.model, table).check_fits();
}

/// Checks the source of the initial weights. A run that resumes from its own checkpoint does not
/// need it.
void check_start(const Inputs& in, const model::ParameterTable& table) {
  if (has_own_checkpoints(in)) return;
  if (!in.reference.hf.empty()) check_reference(in, table);
  const auto& resume = in.checkpoint.resume;
  if (resume != "auto" && resume != "none")
    checkpoint::checkpoints_to_resume(resume);
  else {
    if (in.pretrained.load_weights)
      checkpoint::HfModel(in.pretrained.hf, in.model, table).check_fits();
    if (!in.pretrained.adapters.empty())
      checkpoint::PeftFolder(in.pretrained.adapters, in.model, table);
  }
}

/// Checks the schedule, once train.steps is known.
void check_schedule(const Inputs& in) {
  if (in.schedule.name == optim::ScheduleName::wsd)
    validate(in.schedule.decay_steps <= in.train.steps - in.schedule.warmup_steps,
             "schedule wsd: {} warmup_steps and {} decay_steps do not fit into {} steps; lower "
             "them, or train the first part of a longer run with schedule.name=constant, which is "
             "wsd before its decay, and continue it with schedule.name=wsd and all train.steps",
             in.schedule.warmup_steps, in.schedule.decay_steps, in.train.steps);
}

/// Checks that `ranks` along a context axis have two equal pieces of each sequence.
void check_pieces(std::int64_t sequence, int ranks) {
  const std::int64_t pieces = std::int64_t{2} * ranks;
  if (ranks == 1 || sequence % pieces == 0) return;
  const auto below = sequence / pieces * pieces;
  fail(ExitCode::bad_input,
       "data.sequence_length is {}, which {} context ranks cannot divide into {} equal pieces; use "
       "{}{}",
       sequence, ranks, pieces, below > 0 ? fmt::format("{} or ", below) : "", below + pieces);
}

/// Fills in what the inputs leave open of gathers and reductions: with pipeline stages, once a step
/// each, since every micro-batch passes a stage by itself; but see ranks_that_reduce_first().
void resolve_sharding(Inputs& in) {
  using sharding::Reduce;
  using sharding::ReshardAfterForward;
  auto& reduce = in.sharding.reduce;
  auto& reshard = in.sharding.reshard_after_forward;
  const bool has_stages = in.mesh.pipeline > 1;
  const bool parts_first = in.train.reproducible == Reproducible::mesh && in.mesh.context > 1;
  if (reduce == Reduce::automatic)
    reduce = has_stages && !parts_first ? Reduce::last : Reduce::each;
  if (has_stages && reshard == ReshardAfterForward::by_strategy &&
      in.sharding.strategy != sharding::Strategy::no_shard)
    reshard = ReshardAfterForward::no;
}

/// Checks what pipeline stages cannot do. Returns a warning if they mostly wait, or nothing.
std::string check_pipeline(const Inputs& in, const PipelineShape& shape) {
  const auto stages = shape.stages;
  if (stages == 1) {
    validate(in.pipeline.chunks == 1 && in.pipeline.layers.empty(),
             "pipeline.{} is set, but there are no stages; set mesh.axes.pipeline, or leave it out",
             in.pipeline.chunks == 1 ? "layers" : "chunks");
    return "";
  }
  validate(
      in.pipeline.chunks == 1 || in.sharding.wrap.wrap == sharding::Wrap::layer,
      "pipeline.chunks is {}, but with sharding.wrap={} one unit has weights of several chunks; "
      "use sharding.wrap=layer",
      in.pipeline.chunks, in.sharding.wrap.wrap == sharding::Wrap::size ? "size" : "none");
  pipeline_actions(shape, 0);  // throws if the micro-batches do not fit
  if (shape.micro_batches >= stages) return "";
  return fmt::format(
      "a step has {} micro-batch{} for {} pipeline stages, each of which waits for {:.0f} % of the "
      "time of its passes; raise train.global_batch",
      shape.micro_batches, shape.micro_batches == 1 ? "" : "es", stages,
      100 * pipeline_bubble(shape));
}

/// Checks what an objective on pairs needs.
void check_objective(const Inputs& in) {
  const auto& train = in.train;
  if (!in.data.pairs) {
    validate(in.reference.hf.empty(),
             "reference.hf is set, but train.objective is next_token, which has no reference "
             "model; set train.objective to dpo or ipo, or leave it out");
    return;
  }
  const auto objective = name_in_inputs(train.objective);
  const bool may_be_records =  // a plan opens no file
      in.data.format == data::Format::jsonl || in.data.format == data::Format::automatic;
  validate(may_be_records,
           "train.objective: {} compares answers in JSON records with 'chosen' and 'rejected'; "
           "data.format is {}",
           objective, name_in_inputs(in.data.format));
  validate(in.data.loss_on == data::LossOn::assistant,
           "train.objective: {} compares answers, and data.loss_on is {}; leave it out", objective,
           name_in_inputs(in.data.loss_on));
}

/// Returns placements from the inputs' spec, or Megatron's; writes the spec's residual layout into
/// the inputs.
sharding::Placements place(Inputs& in, const model::ParameterTable& table,
                           const comm::ParallelDims& mesh) {
  validate(!in.model.lora || !in.sharding.spec,
           "sharding.spec cannot place the adapters of model.lora; leave it out and choose a "
           "sharding.strategy");
  if (!in.sharding.spec)
    return sharding::tensor_parallel_placements(table, mesh, in.tensor, in.sharding.strategy);
  auto compiled = sharding::compile(*in.sharding.spec, table, mesh, in.tensor.residual);
  in.tensor.residual = compiled.residual;
  return std::move(compiled.placements);
}

/// Checks that the run can continue evaluate.prompts.
void check_prompts(const Setup& setup) {
  const Inputs& in = setup.inputs;
  validate(in.evaluate.every_steps > 0,
           "evaluate.prompts are continued after each validation; set evaluate.every_steps");
  const auto stages = setup.mesh.group_size(setup.mesh.pipeline());
  validate(stages == 1 && in.mesh.expert == 1,
           "evaluate.prompts needs all layers and experts on each rank, but mesh.pipeline is {} "
           "and mesh.expert {}; leave it out, and use llamesh generate on checkpoints",
           stages, in.mesh.expert);
  validate(data::is_text(in.data.format) || in.data.tokenizer != "byte",
           "evaluate.prompts needs the tokenizer of the tokens in data.train; name it in "
           "data.tokenizer");
}

}  // namespace

data::BatchPartition Setup::batch_partition(int rank) const {
  const auto batch = mesh.batch_axes();
  return {.sequence_length = inputs.data.sequence_length,
          .micro_batch = inputs.train.micro_batch,
          .global_batch = inputs.train.global_batch,
          .rank = mesh.rank_in_group(batch, rank),
          .ranks = mesh.group_size(batch),
          .neighbors = neighbors};
}

data::ValidationData Setup::validation_data(const data::TokenStream& tokens, int rank) const {
  const auto partition = batch_partition(rank);
  const std::int64_t at_once = partition.ranks * partition.micro_batch;
  constexpr auto max = std::numeric_limits<std::int64_t>::max();
  const auto& evaluate = inputs.evaluate;
  const std::int64_t limit = evaluate.batches > 0
                                 ? std::min(evaluate.batches, max / at_once) * at_once
                                 : evaluate.sequences;
  return {tokens, partition, limit};
}

bool refers_to_base(const Inputs& in) {
  return in.checkpoint.base == checkpoint::BaseWeights::reference &&
         (in.pretrained.load_weights || in.model.has_coded_base());
}

std::string describe(const device::MemoryByUse& bytes) {
  std::string text;
  for (std::size_t use = 0; use < bytes.size(); ++use)
    if (bytes[use] >= 1 << 20 || (bytes[use] > 0 && text.empty()))
      text += fmt::format("{}{} {:.1f} MiB", text.empty() ? "" : ", ",
                          name_of(static_cast<device::MemoryUse>(use)),
                          static_cast<double>(bytes[use]) / (1 << 20));
  return text;
}

Setup plan_setup(const Inputs& inputs, comm::Topology topology) {
  Setup setup;
  setup.inputs = inputs;
  setup.topology = std::move(topology);
  auto& in = setup.inputs;
  in.model = in.model.resolved();
  resolve_objective(in);
  check_objective(in);
  validate(in.model.dropout == 0,
           "model.dropout is {}, and llamesh has no dropout; set model.dropout=0 to train without",
           in.model.dropout);
  model::check_positions(in.model, in.data.sequence_length);
  in.run.folder = folder_of(in);
  in.data.seed = in.run.seed;
  const auto& [freeze, only] = in.train.trained;
  validate(!in.model.lora || (freeze.empty() && only.empty()),
           "model.lora freezes everything but its adapters; leave train.freeze and train.only out");
  validate(!in.model.has_coded_base() || in.checkpoint.base == checkpoint::BaseWeights::reference,
           "model.lora.base: {} rounds the weights of a folder, to which checkpoints then refer; "
           "leave checkpoint.base out",
           name_in_inputs(in.model.lora->base));
  auto table = model::parameter_table(in.model);
  model::freeze_parameters(table, in.model, in.train.trained);
  setup.table = std::make_unique<const model::ParameterTable>(std::move(table));
  resolve_sharding(in);
  const bool by_node = in.sharding.reduce_dtype != sharding::ReduceDType::automatic;
  setup.mesh =
      sharding::make_mesh(in.sharding.strategy, in.sharding.reshard_after_forward,
                          sharding::SplitByNode{by_node}, in.mesh, setup.topology, *setup.table);
  if (in.optimizer.outer.enabled()) setup.mesh = setup.mesh.with_replicas_apart("replicate");
  setup.micro_batches = micro_batches_of(in.train, setup.mesh.group_size(setup.mesh.batch_axes()));
  if (setup.is_mesh_reproducible()) {
    check_mesh_reproducible(in, setup.mesh);
    setup.micro_batches *= std::exchange(in.train.micro_batch, 1);
  }
  setup.pipeline = {.stages = setup.mesh.group_size(setup.mesh.pipeline()),
                    .chunks = in.pipeline.chunks,
                    .micro_batches = static_cast<int>(setup.micro_batches)};
  setup.pipeline_warning = check_pipeline(in, setup.pipeline);
  validate(in.data.sequence_length <= max_tokens_at_once / in.train.micro_batch,
           "train.micro_batch {} x data.sequence_length {} are more than {} tokens at once; lower "
           "one of them",
           in.train.micro_batch, in.data.sequence_length, max_tokens_at_once);
  check_pieces(in.data.sequence_length, setup.mesh.group_size(setup.mesh.context()));
  auto placements = place(in, *setup.table, setup.mesh);
  setup.chunks = sharding::chunk_layers(*setup.table, in.pipeline,
                                        setup.mesh.group_size(setup.mesh.pipeline()));
  sharding::place_in_stages(placements, *setup.table, setup.mesh, setup.chunks);
  sharding::check_residual(*setup.table, setup.mesh, in.tensor,
                           in.train.micro_batch * setup.row_length());
  auto units = sharding::make_units(*setup.table, in.sharding.wrap, setup.mesh, placements);
  setup.layout = std::make_unique<const sharding::ShardLayout>(*setup.table, std::move(units),
                                                               setup.mesh, std::move(placements));
  if (setup.is_mesh_reproducible()) setup.neighbors = ranks_that_reduce_first(in, *setup.layout);
  setup.virtual_ranks = virtual_ranks_of(in, setup.mesh);
  if (setup.virtual_ranks.count() > 1) {
    check_pieces(in.data.sequence_length, in.train.reproducible_context);
    setup.virtual_layout = virtual_layout_of(in, *setup.layout, setup.chunks);
  }
  // A replica reads the same sequences whatever ranks it has.
  if (in.optimizer.outer.enabled())
    setup.neighbors = setup.mesh.group_size(setup.mesh.batch_axes() & ~setup.mesh.apart());
  optim::check(in.optimizer, *setup.layout, in.sharding.offload);
  optim::check(in.optimizer.outer, *setup.layout, in.sharding.offload);
  check_quantized_exchanges(in, *setup.layout, setup.topology);
  if (in.train.epochs == 0) check_schedule(in);
  profiled_steps(in.profile);
  return setup;
}

Setup make_setup(const comm::Communicator& world, const Inputs& inputs) {
  device::advise_on_memory(
      "use more ranks, a smaller train.micro_batch, mesh.axes.context, sharding.offload, "
      "memory.activation_checkpointing or, for some of the layers, "
      "memory.full_checkpointing_layers");
  Setup setup;
  comm::agree(world, [&] {  // every rank finds the same error, one reports it
    setup.topology = comm::discover_topology(world, inputs.mesh.ranks_per_node);
  });
  const auto fitting = inputs_for_what_is_left(world, inputs, setup.topology);
  comm::agree(world, [&] {
    setup = plan_setup(fitting, std::move(setup.topology));
    auto& in = setup.inputs;
    if (in.sharding.spec) sharding::check_implemented(*setup.layout, in.tensor.residual);
    if (world.rank() == 0) {
      refuse_stale_end_time();
      check_run_folder(in.run.folder);
      check_openmetrics(in.log.openmetrics, in.run.folder);
      check_start(in, *setup.table);
    }
    validate(in.train.gemm_sm_count_target == 0 || in.train.gemm_table.empty(),
             "train.gemm_table was timed on all SMs of a GPU, train.gemm_sm_count_target {} leaves "
             "some out; use one of them",
             in.train.gemm_sm_count_target);
    if (!in.train.gemm_table.empty()) ops::use_gemm_table(in.train.gemm_table);
    validate(
        in.log.openmetrics.empty() || in.log.openmetrics.ends_with(".prom"),
        "log.openmetrics is '{}', and node_exporter reads only files whose names end in .prom; "
        "rename it",
        in.log.openmetrics);
    validate(in.evaluate.every_steps == 0 || !in.validation_sets().empty(),
             "evaluate.every_steps is {}, but data.validation names no file",
             in.evaluate.every_steps);
    if (!in.evaluate.prompts.empty()) check_prompts(setup);
  });
  open_data(world, setup);
  comm::agree(world, [&] {
    auto& in = setup.inputs;
    if (in.train.epochs == 0) return;
    in.train.steps = steps_of(in.train, setup.train_tokens->sampler(in.run.seed).epoch_length());
    check_schedule(in);
  });
  return setup;
}

}  // namespace llamesh::train
