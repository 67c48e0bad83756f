#include "train/job/job_report.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "core/clock.hpp"
#include "core/log.hpp"
#include "core/process.hpp"
#include "core/text.hpp"
#include "data/chat_template.hpp"
#include "device/device.hpp"
#include "train/job/flight_files.hpp"
#include "train/job/run_folder.hpp"

namespace llamesh::train {

JobReport::JobReport(const comm::Communicator& world, const Setup& setup, Deadline& deadline)
    : world_(world), setup_(setup), folder_(setup.inputs.run.folder), deadline_(deadline) {}

void JobReport::open() {
  comm::agree(world_, [&] {
    if (world_.rank() == 0) metrics_path_ = open_run_folder(folder_);
  });
  if (setup_.inputs.log.ranks)
    comm::agree(world_, [&] { log_rank_to_file(log_file_of_rank(folder_, world_.rank())); });
}

void JobReport::log_job(const Trainer& trainer) {
  const TrainOptions& train = setup_.inputs.train;
  spdlog::info("{}", trainer.describe());
  spdlog::info("{}", trainer.meter().describe_memory());
  if (const auto counters = trainer.meter().describe_energy(); !counters.empty())
    spdlog::info("energy: by {}", counters);
  if (!setup_.bf16_weights.empty()) spdlog::info("{}", setup_.bf16_weights);
  if (world_.rank() == 0 && !setup_.pipeline_warning.empty())
    spdlog::warn("{}", setup_.pipeline_warning);
  if (device::kind() == device::Kind::cpu && !train.gemm_table.empty())
    spdlog::info("train.gemm_table is for GPUs: the CPU's GEMMs have one algorithm each");
  for (const std::string& line : trainer.describe_data()) spdlog::info("{}", line);
  if (world_.rank() == 0)  // other ranks' warnings reach the log, too
    for (const std::string& line : setup_.train_tokens->warnings()) spdlog::warn("{}", line);
  if (train.epochs > 0)
    spdlog::info("train.epochs {}: {} steps of {} sequences", train.epochs, train.steps,
                 train.global_batch);
  const auto job = number_in_environment("SLURM_JOB_ID");
  if (job.empty()) return;
  const auto restarts = number_in_environment("SLURM_RESTART_COUNT");
  const auto left = deadline_.seconds_left(std::chrono::seconds(1));
  spdlog::info("job {}, restart {}, {}", job, restarts.empty() ? "0" : restarts,
               left ? fmt::format("{:.0f} s of walltime left", *left) : "no walltime known");
}

bool JobReport::was_done() {
  return comm::on_rank_0(world_, [&]() -> std::string {
           const auto before = read_run_state(folder_);
           if (!before || before->phase != RunPhase::done) return "";
           write_run_state(folder_, *before);
           return "done";
         }) == "done";
}

void JobReport::start(const StartEvent& event, std::int64_t step, const OwnCheckpoints& own,
                      const std::string& config, double seconds) {
  comm::agree(world_, [&] {
    if (world_.rank() != 0) return;
    const auto before = read_run_state(folder_);
    gauges_ = {.run = setup_.inputs.run.name,
               .step = step,
               .steps = std::max(step, setup_.inputs.train.steps),
               .checkpoint_step = own.on_disk,
               .joules = before ? before->joules : std::nullopt};
    const auto explained = explain_sudden_end(before);
    put_records_aside(folder_);
    state_ = start_after(explained, std::max(own.on_disk, own.in_memory),
                         !number_in_environment("SLURM_JOB_ID").empty(), setup_.topology.host_of);
    state_.step = own.on_disk;
    state_.memory_step = own.in_memory;
    state_.steps = gauges_.steps;
    metrics_ = std::make_unique<MetricsFile>(metrics_path_, step);
    start_goodput(before, seconds);
    write_run_state(folder_, state_);
    write_config(folder_, config);
    record_chat_template();
    metrics_->write_start(event.name, step, event.detail, comm::to_string(setup_.mesh));
    if (setup_.inputs.log.tensorboard)
      events_ = std::make_unique<EventFile>(folder_ / "tensorboard", step);
    if (const auto& file = setup_.inputs.log.openmetrics; !file.empty())
      openmetrics_ = std::make_unique<OpenMetricsFile>(file, gauges_);
    warn_of_short_walltime();
  });
}

void JobReport::record_chat_template() const {
  const auto& data = setup_.inputs.data;
  if (data.format != data::Format::jsonl) return;
  if (const auto jinja = data::jinja_template_of(data)) write_chat_template(folder_, jinja->text);
}

/// Warns if the previous launch could not record why it ended. Returns its state, with the faulty
/// rank according to its flight records.
std::optional<RunState> JobReport::explain_sudden_end(std::optional<RunState> before) const {
  if (!before || before->phase != RunPhase::running) return before;
  std::error_code ignored;
  const auto last =
      std::filesystem::exists(metrics_path_, ignored) ? last_step_of(metrics_path_) : 0;
  spdlog::warn(
      "the previous launch{} was killed, lost its node, or could not write to the run folder: its "
      "state.json of {} still says running; its last step was {}, its newest checkpoint is of step "
      "{}",
      before->job.empty() ? "" : " (job " + printable(before->job) + ")", printable(before->time),
      std::max({last, before->step, std::int64_t{0}}), before->step);
  if (const auto failure = read_failure(folder_)) {
    spdlog::warn("by its flight records: {}", printable(failure->detail));
    write_failure(folder_, *failure);
    if (failure->host.empty()) return before;
    before->faulty_ranks = {failure->rank};
    before->faulty_hosts = {failure->host};
    before->doing = fmt::format("{} step {}", failure->phase, failure->step);
  }
  return before;
}

/// Counts the time up to now. metrics.jsonl has every step that was done, so it tells which steps
/// still count.
void JobReport::start_goodput(const std::optional<RunState>& before, double seconds) {
  const auto& earlier = metrics_->earlier();
  auto& goodput = state_.goodput;
  goodput.productive = earlier.kept;
  goodput.repeated += earlier.dropped;
  goodput.starting += seconds;
  Gap gap{.last_step = earlier.last_end, .launched = unix_time() - seconds};
  const auto job = number_in_environment("SLURM_JOB_ID");
  if (before) {
    gap.same_allocation = !job.empty() && before->job == job &&
                          before->restarts == number_in_environment("SLURM_RESTART_COUNT");
    gap.has_faulty_rank = !before->faulty_ranks.empty();
    if (before->phase != RunPhase::running) gap.ended = parse_utc(before->time);
    add_gap(goodput, gap);
  }
  if (!job.empty() && !gap.same_allocation)
    waiting_ = std::async(std::launch::async, time_in_queue,
                          gap.ended.value_or(gap.last_step.value_or(0)));
  other_before_ = goodput.other;
  loop_begin_ = std::chrono::steady_clock::now();
}

void JobReport::update_goodput() {
  state_.goodput.other = other_before_ + std::max(0.0, seconds_since(loop_begin_) - in_loop_);
  gauges_.goodput = state_.goodput;
  if (!waiting_.valid() || waiting_.wait_for(std::chrono::seconds(0)) != std::future_status::ready)
    return;
  if (const auto waited = waiting_.get())
    state_.goodput.waiting = state_.goodput.waiting.value_or(0) + *waited;
}

/// By the measurements of the previous launch.
void JobReport::warn_of_short_walltime() {
  const auto left = deadline_.seconds_left();
  if (left && *left < state_.seconds_needed)
    spdlog::warn(
        "{:.0f} s of walltime are left, but two steps and a save need {:.0f} s as the previous "
        "launch measured: this launch will gain one step at most; give the job more time",
        std::max(*left, 0.0), state_.seconds_needed);
}

void JobReport::on_started(const Startup& startup, std::int64_t step) {
  spdlog::info("startup: {}", startup.describe());
  if (metrics_) metrics_->write_startup(step, startup.phases());
}

void JobReport::on_step(const StepRecord& record) {
  step_seconds_ = record.seconds;
  if (metrics_) metrics_->write(record);
  show_in_tensorboard([&](EventFile& events) { events.write(record); });
  if (!metrics_) return;
  state_.goodput.productive += record.seconds;
  in_loop_ += record.seconds;
  update_goodput();
  if (record.joules) state_.joules = state_.joules.value_or(0) + *record.joules;
  gauges_.joules = state_.joules;
  gauges_.step = record.step;
  if (openmetrics_) latest_ = record;
  if (record.step % setup_.inputs.log.every_steps == 0) show_in_openmetrics(&latest_);
  const auto warn = [&](const char* event, const std::string& line) {
    spdlog::warn("{}", line);
    metrics_->write_event(event, record.step, line);
  };
  for (const auto& line : record.healed) warn("healed", line);
  for (const auto& line : record.stragglers) warn("straggler", line);
  for (const auto& line : record.idle_experts) warn("idle_experts", line);
  if (!record.skipped.empty()) warn("skipped", record.skipped);
  for (const auto& line : record.spikes) warn("spike", line);
}

/// start() has found that the file can be written.
void JobReport::show_in_tensorboard(const std::function<void(EventFile&)>& write) {
  if (!events_) return;
  try {
    write(*events_);
  } catch (const Error& error) {
    events_.reset();
    spdlog::warn("no more events for TensorBoard: {}; the run goes on", error.what());
  }
}

/// start() has found that the file can be written.
void JobReport::show_in_openmetrics(const StepRecord* record) {
  if (!openmetrics_) return;
  try {
    openmetrics_->write(gauges_, record);
  } catch (const Error& error) {
    openmetrics_.reset();
    spdlog::warn("no more metrics for node_exporter: {}; the run goes on", error.what());
  }
}

void JobReport::on_healed(std::int64_t step, const std::string& line) {
  if (!metrics_) return;
  spdlog::warn("{}", line);
  metrics_->write_event("healed", step, line);
}

void JobReport::on_state_hashes(std::int64_t step, const StateHashes& hashes) {
  if (metrics_) metrics_->write_state_hashes(step, hashes);
}

void JobReport::on_samples(std::int64_t step, const std::vector<SampleText>& samples) {
  if (!metrics_ || samples.empty()) return;
  for (const auto& sample : samples)
    spdlog::info("step {}: {} | {}", step, excerpt(sample.prompt), excerpt(sample.text));
  metrics_->write_samples(step, samples);
}

/// The report shows the first set of a step as the main one, so the deciding set comes first.
void JobReport::on_validation(const std::vector<StepRecord>& of_sets) {
  const auto sets = setup_.inputs.validation_sets();
  std::vector<std::size_t> order(sets.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_partition(  // the deciding set comes first
      order, [&](std::size_t i) { return sets[i].name == setup_.inputs.deciding_set(); });
  gauges_.validation_losses.clear();
  for (const auto i : order) {
    const auto& set = sets[i].name;
    gauges_.validation_losses.emplace_back(set, of_sets[i].loss);
    if (metrics_) metrics_->write_validation(of_sets[i], set);
    show_in_tensorboard([&](EventFile& events) { events.write_validation(of_sets[i], set); });
  }
}

void JobReport::on_early_stop(std::int64_t step, const std::string& line) {
  spdlog::info("{}", line);
  if (metrics_) metrics_->write_event("early_stop", step, line);
}

void JobReport::on_saved(std::int64_t step, const std::string& name, double seconds,
                         const std::optional<StepLoss>& best) {
  if (metrics_) metrics_->write_event("checkpoint", step, name);
  if (world_.rank() != 0) return;
  state_.goodput.saving += seconds;
  in_loop_ += seconds;
  update_goodput();
  metrics_->write_goodput(step, state_.goodput.parts());
  state_.step = step;
  state_.best = best;
  write_run_state(folder_, state_);
  gauges_.checkpoint_step = step;
  gauges_.checkpoint_time = unix_time();
  show_in_openmetrics(latest_.step > 0 ? &latest_ : nullptr);
}

void JobReport::on_saved_in_memory(std::int64_t step, double seconds) {
  if (!metrics_) return;
  metrics_->write_event("memory_checkpoint", step, fmt::format("{:.3f} s", seconds));
  state_.memory_step = step;
  gauges_.memory_step = step;
  state_.goodput.saving += seconds;
  in_loop_ += seconds;
}

void JobReport::on_end(RunPhase phase, ExitCode code, const std::string& reason,
                       double slowest_save) {
  comm::agree(world_, [&] {
    if (world_.rank() != 0) return;
    state_.phase = phase;
    if (step_seconds_ > 0) state_.seconds_needed = lead_time(slowest_save, 2 * step_seconds_);
    state_.exit_code = code;
    state_.reason = reason;
    if (metrics_) update_goodput();
    write_run_state(folder_, state_);
    gauges_.running = false;
    show_in_openmetrics(latest_.step > 0 ? &latest_ : nullptr);
  });
}

void JobReport::on_failure(bool on_this_rank) noexcept {
  if (gauges_.run.empty()) return;  // not rank 0, or the run has not started
  try {
    gauges_.running = false;
    const auto& file = setup_.inputs.log.openmetrics;
    if (openmetrics_)
      show_in_openmetrics(latest_.step > 0 ? &latest_ : nullptr);
    else if (!file.empty())  // refused before the file was opened: it shows an earlier launch
      openmetrics_ = std::make_unique<OpenMetricsFile>(file, gauges_);
  } catch (const std::exception&) {
    // The state below may be on another file system.
    openmetrics_.reset();
  }
  if (!on_this_rank || !metrics_) return;
  try {
    auto state = read_run_state(folder_);
    if (!state) return;
    state->joules = state_.joules;
    state->goodput = state_.goodput;
    write_run_state(folder_, *state);
  } catch (const std::exception&) {
    return;
  }
}

}  // namespace llamesh::train
