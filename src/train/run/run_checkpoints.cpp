#include "train/run/run_checkpoints.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "checkpoint/format/format.hpp"
#include "checkpoint/memory/memory_folder.hpp"
#include "checkpoint/models/base_model.hpp"
#include "checkpoint/models/hf_model.hpp"
#include "checkpoint/models/peft_folder.hpp"
#include "comm/mpi/exchange.hpp"
#include "comm/mpi/session.hpp"
#include "core/clock.hpp"
#include "core/hash.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "data/fingerprint.hpp"
#include "model/description/config_json.hpp"
#include "ops/ops.hpp"
#include "train/job/watch.hpp"
#include "train/run/reference_files.hpp"

namespace llamesh::train {
namespace {

using comm::Activity;

/// Hashes what the deciding validation loss is computed on: the set's tokens, how many sequences
/// are evaluated, and how tokens see each other in them. Empty if the run does not evaluate.
std::string hash_of_deciding_data(const Setup& setup) {
  const auto& in = setup.inputs;
  const auto sets = in.validation_sets();
  const auto set = std::ranges::find(sets, in.deciding_set(), &ValidationSet::name);
  if (setup.validation_tokens.empty() || set == sets.end()) return "";
  const auto& tokens = setup.validation_tokens[static_cast<std::size_t>(set - sets.begin())];
  RunningHash hash;
  const auto add = [&](const auto& number) { hash.add(&number, sizeof(number)); };
  const auto data = setup.validation_data(tokens, 0);
  add(data.is_whole() ? std::int64_t{0} : data.sequences());
  add(in.data.sequence_length);
  if (in.data.document_mask) add(in.data.document_mask);
  for (const auto& file : tokens.file_fingerprints(data::piece_bytes_for(tokens.files()))) {
    add(file.tokens);
    add(file.hash);
  }
  return to_hex(hash.value());
}

}  // namespace

std::string fingerprint_of_data(const comm::Communicator& world, const Setup& setup) {
  return comm::on_rank_0(world, [&] {
    return data::to_text(setup.train_tokens->fingerprint(setup.inputs.train.global_batch));
  });
}

std::string load_base(const comm::Communicator& world, const Setup& setup,
                      const checkpoint::State& state, const checkpoint::BaseModel& saved) {
  const auto& pretrained = setup.inputs.pretrained;
  auto folder = pretrained.load_weights ? pretrained.hf : saved.path;
  comm::agree(world, [&] {
    if (world.rank() == 0) checkpoint::check_base_exists(folder);
  });
  const auto hash = checkpoint::load_hf_weights(folder, setup.inputs.model, state.frozen(), world,
                                                pretrained.load);
  comm::agree(world, [&] {
    if (world.rank() == 0) checkpoint::check_base(saved, folder, hash);
  });
  spdlog::info("read the frozen weights from {}", folder);
  return folder;
}

RunCheckpoints::RunCheckpoints(const comm::Communicator& world, const Setup& setup,
                               const std::string& config, Trainer& trainer,
                               comm::Watchdog& watchdog, JobReport& report)
    : world_(world),
      setup_(setup),
      config_(config),
      trainer_(trainer),
      watchdog_(watchdog),
      report_(report),
      folder_(std::filesystem::path(setup.inputs.run.folder) / "checkpoints"),
      state_(checkpoint::state_of(trainer.state())),
      store_(folder_, setup.inputs.checkpoint, world),
      validation_(setup.inputs,
                  comm::on_rank_0(world, [&] { return hash_of_deciding_data(setup); })) {
  const auto& options = setup.inputs.checkpoint.memory;
  if (options.enabled()) memory_.emplace(setup.inputs.run.folder, options, setup.topology, world);
}

StartEvent RunCheckpoints::resume(const ConfigChanges& changes) {
  watchdog_.begin(Activity::resuming, 0, time_for_first_checkpoint(setup_));
  data_ = {.seed = setup_.inputs.run.seed, .fingerprint = fingerprint_of_data(world_, setup_)};
  const auto mode = resume_mode(world_, setup_.inputs.checkpoint.resume, folder_);
  const auto on_disk = steps_on_disk();
  disk_step_ = on_disk.empty() ? -1 : on_disk.front();
  auto found = mode == "auto" ? resume_from_memory() : std::nullopt;
  const bool from_memory = found.has_value();
  if (!from_memory)
    found = store_.resume(state_, mode, [&](const checkpoint::TrainState& saved) {
      check_run(saved, mode == "auto" ? std::optional(OwnRun{folder_, saved.step}) : std::nullopt);
    });
  if (!found) return initialize_weights();
  if (found->base) {
    const auto folder = load_base(world_, setup_, state_, *found->base);
    refer_to_base(folder, found->base->hash);
  }
  store_.reserve(saved_state());
  trainer_.resume_from(found->step, found->tokens);
  trainer_.restore_exchanges(found->exchanges);
  trainer_.keep_bf16_products(found->bf16_products);
  saved_attention_ = found->attention;
  if (setup_.inputs.data.pairs) restore_references(*found);
  if (setup_.is_mesh_reproducible() && world_.rank() == 0)
    warn_of_other_arithmetic(*found, setup_.inputs);
  if (mode == "auto") {
    saved_step_ = from_memory ? disk_step_ : found->step;
    memory_step_ = from_memory ? found->step : -1;
    restore_validation(*found);
    if (from_memory)
      validation_.keep_only(on_disk, found->step);
    else
      disk_step_ = found->step;  // newer ones are damaged
  }
  spdlog::info("resumed after step {}{}, saved on mesh {}", found->step,
               from_memory ? " from memory" : "", found->mesh);
  const bool trains = found->step < setup_.inputs.train.steps;  // else no change has any effect
  if (changes && trains && world_.rank() == 0)
    for (const std::string& change : changes(found->config, config_))
      spdlog::info("changed since step {}: {}", found->step, change);
  return {"resume", found->mesh};
}

/// Returns the steps of the checkpoints on disk, by their names, newest first.
std::vector<std::int64_t> RunCheckpoints::steps_on_disk() const {
  std::vector<std::int64_t> steps;
  comm::agree(world_, [&] {
    if (world_.rank() != 0) return;
    for (const auto& own : checkpoint::committed_checkpoints(folder_))
      steps.push_back(checkpoint::step_of(own));
  });
  return comm::broadcast_list(world_, steps);
}

void RunCheckpoints::check_run(const checkpoint::TrainState& saved,
                               const std::optional<OwnRun>& own) const {
  check_model(saved, setup_.inputs.model, own);
  check_data(saved, data_, own);
}

std::optional<checkpoint::TrainState> RunCheckpoints::resume_from_memory() {
  if (!memory_) return {};
  const auto accept = [&](const checkpoint::TrainState& saved) {
    check_run(saved, OwnRun{folder_, disk_step_});
  };
  try {
    return memory_->resume(state_, disk_step_, accept);
  } catch (const comm::PeerFailure& failure) {
    if (failure.code() != ExitCode::io_failure) throw;
  } catch (const Error& error) {  // snapshots that disappear meanwhile: a site cleans /dev/shm
    if (error.code() != ExitCode::io_failure) throw;
    spdlog::warn("memory checkpoints are not used: {}", error.what());
  }
  return {};
}

/// Continues the run's record of validation losses. Another run's does not count: its best
/// checkpoints are elsewhere.
void RunCheckpoints::restore_validation(const checkpoint::TrainState& saved) {
  const auto changed = validation_.restore(saved.validation);
  if (!changed.empty())
    spdlog::info(
        "{}: earlier validation losses do not count for checkpoint.keep_best and train.early_stop",
        changed);
}

/// Loads weights from a Hugging Face folder and adapters from a PEFT folder. What is not there is
/// drawn from the seed.
StartEvent RunCheckpoints::initialize_weights() {
  const auto& pretrained = setup_.inputs.pretrained;
  const auto weights = checkpoint::weights_of(trainer_.state());
  if (!setup_.inputs.reference.hf.empty()) load_reference_model();
  const auto begin = Clock::now();
  std::uint64_t frozen = 0;
  std::vector<std::string> folders;
  comm::agree(world_, [&] {
    validate(!setup_.inputs.model.has_coded_base() || pretrained.load_weights || world_.rank() != 0,
             "model.lora.base: {} rounds the weights of a folder, to which checkpoints then refer; "
             "set model.hf",
             name_in_inputs(setup_.inputs.model.lora->base));
  });
  if (!pretrained.load_weights)
    trainer_.draw(sharding::ShardedState::Units::all);
  else if (setup_.inputs.model.lora)
    trainer_.draw(sharding::ShardedState::Units::trained);
  if (pretrained.load_weights) {
    const auto hash = checkpoint::load_hf_weights(pretrained.hf, setup_.inputs.model, weights,
                                                  world_, pretrained.load);
    refer_to_base(pretrained.hf, hash);
    frozen = hash;
    folders.push_back("the weights of " + pretrained.hf);
  }
  if (!pretrained.adapters.empty()) {
    checkpoint::load_adapters(pretrained.adapters, setup_.inputs.model, weights, world_);
    folders.push_back("the adapters of " + pretrained.adapters);
  }
  trainer_.resume_from(0, 0);
  if (setup_.inputs.data.pairs && !reference_) find_references(frozen);
  store_.reserve(saved_state());
  if (folders.empty()) return {"start", "a fresh start"};
  const auto loaded = fmt::format("{}", fmt::join(folders, " and "));
  spdlog::info("loaded {} in {:.2f} s", loaded, seconds_since(begin));
  return {"start", loaded};
}

/// Loads the model that reference.hf names, without adapters, and finds its log-probabilities.
void RunCheckpoints::load_reference_model() {
  const auto& in = setup_.inputs;
  trainer_.draw(sharding::ShardedState::Units::all);
  const auto frozen = checkpoint::load_hf_weights(in.reference.hf, in.model,
                                                  checkpoint::weights_of(trainer_.state()), world_,
                                                  in.pretrained.load);
  find_references(frozen);
}

void RunCheckpoints::find_references(std::uint64_t frozen) {
  watchdog_.begin(Activity::evaluating, 0);
  const auto model = hash_of_model(world_, setup_, trainer_, frozen);
  reference_ =
      train::find_references(world_, setup_, trainer_, model, [this] { watchdog_.progress(); });
}

/// Goes on with the checkpoint's references. If its run was trained on no pairs, its
/// weights are the reference model's.
void RunCheckpoints::restore_references(const checkpoint::TrainState& saved) {
  if (saved.reference) {
    train::restore_references(world_, setup_, trainer_, *saved.reference);
    reference_ = saved.reference;
    return;
  }
  comm::agree(world_, [&] {
    validate(setup_.inputs.reference.hf.empty() || world_.rank() != 0,
             "reference.hf is set, but a run that starts from another run's checkpoint compares "
             "with the weights there; leave it out, or start from a folder (model.hf)");
  });
  find_references(base_ ? base_->hash : 0);
}

/// Makes later checkpoints refer to this folder for the frozen weights, if there are some and the
/// inputs do not include them.
void RunCheckpoints::refer_to_base(const std::string& folder, std::uint64_t hash) {
  const bool has_frozen = setup_.table->trained_numel() < setup_.table->numel();
  if (!has_frozen || setup_.inputs.checkpoint.base == checkpoint::BaseWeights::include) return;
  base_ = {std::filesystem::absolute(folder).lexically_normal().string(), hash};
}

bool RunCheckpoints::due(std::int64_t step) const {
  const auto& options = setup_.inputs.checkpoint;
  if (options.every_steps > 0 && step % options.every_steps == 0) return true;
  if (validation_.is_best(step)) return true;
  return options.every_minutes > 0 && world_.rank() == 0 &&
         seconds_since(last_save_) >= 60 * options.every_minutes;
}

bool RunCheckpoints::fits(Deadline& deadline) const {
  const auto left = deadline.seconds_left();
  const bool fits = !left || store_.slowest_save() < *left;
  return world_.min(std::int64_t{fits}, "whether a save fits") != 0;
}

void RunCheckpoints::save() {
  finish();
  trainer_.settle();
  watchdog_.begin(Activity::saving, trainer_.step(), time_for_first_checkpoint(setup_));
  const auto start = Clock::now();
  std::vector<std::int64_t> best;
  for (const auto& one : validation_.best()) best.push_back(one.step);
  best_under_way_ =
      validation_.best().empty() ? std::nullopt : std::optional(validation_.best()[0]);
  under_way_ = store_.save(saved_state(), progress_now(), std::move(best));
  last_save_ = Clock::now();
  blocked_seconds_ = seconds_since(start);
  saved_step_ = trainer_.step();
  if (setup_.inputs.checkpoint.async)
    spdlog::info("saving {}: training blocked for {:.2f} s", under_way_.string(),
                 seconds_since(start));
  else
    finish();
}

void RunCheckpoints::reserve_memory() {
  const auto& inputs = setup_.inputs;
  if (!memory_) {
    if (setup_.topology.local_rank_of[static_cast<std::size_t>(world_.rank())] == 0)
      checkpoint::remove_memory_folders(checkpoint::memory_folder_prefix(inputs.run.folder));
    return;
  }
  memory_->reserve(saved_state(), std::ssize(checkpoint::to_text(progress_now())));
  spdlog::info("memory checkpoints every {} steps: {}", inputs.checkpoint.memory.every_steps,
               memory_->describe());
}

bool RunCheckpoints::due_in_memory() const {
  return memory_ && trainer_.step() % setup_.inputs.checkpoint.memory.every_steps == 0;
}

/// Waits for replicas of the previous memory checkpoint that are still in transit.
void RunCheckpoints::watch_copying() {
  const auto limit = time_for_first_checkpoint(setup_);
  const bool waits = memory_->has_remote_replicas();
  watchdog_.begin(Activity::copying, trainer_.step(), limit,
                  waits ? limit : std::chrono::seconds(0));
}

void RunCheckpoints::save_in_memory() {
  watch_copying();
  trainer_.settle();
  const auto start = Clock::now();
  memory_->save(saved_state(), progress_now(), std::max(disk_step_, store_.committed_step()));
  memory_step_ = trainer_.step();
  report_.on_saved_in_memory(memory_step_, seconds_since(start));
}

bool RunCheckpoints::only_in_memory() const {
  return memory_step_ == trainer_.step() && saved_step_ != trainer_.step();
}

bool RunCheckpoints::owes_save() const {
  const auto& options = setup_.inputs.checkpoint;
  const auto step = trainer_.step();
  const bool due = options.every_minutes > 0 || validation_.is_best(step) ||
                   (options.every_steps > 0 && step % options.every_steps == 0);
  return only_in_memory() && due;
}

void RunCheckpoints::release_memory() {
  if (!memory_ || saved_step_ < memory_step_) return;
  watch_copying();
  memory_->remove();
}

checkpoint::TrainState RunCheckpoints::progress_now() const {
  return {.step = trainer_.step(),
          .tokens = trainer_.tokens(),
          .seed = data_.seed,
          .mesh = comm::to_string(setup_.mesh),
          .strategy = std::string(sharding::name_of(setup_.inputs.sharding.strategy)),
          .config = config_,
          .model_config = model::to_config_json(setup_.inputs.model),
          .llamesh_version = version(),
          .data = data_.fingerprint,
          .bf16_products = trainer_.bf16_products(),
          .attention = ops::used_attention(),
          .arithmetic = arithmetic_of(setup_.inputs),
          .base = base_,
          .validation = validation_.to_text(),
          .exchanges = trainer_.exchanges(),
          .reference = reference_};
}

void RunCheckpoints::finish() {
  if (under_way_.empty()) return;
  const auto limit = time_for_first_checkpoint(setup_);
  // For an asynchronous save the earlier durations show only how long training waited.
  const bool writes = setup_.inputs.checkpoint.async;
  watchdog_.begin(Activity::saving, saved_step_, limit, writes ? limit : std::chrono::seconds(0));
  const auto begin = Clock::now();
  store_.wait();
  blocked_seconds_ += seconds_since(begin);
  spdlog::info("saved {}", under_way_.string());
  report_.on_saved(saved_step_, under_way_.filename().string(), blocked_seconds_, best_under_way_);
  under_way_.clear();
}

}  // namespace llamesh::train
