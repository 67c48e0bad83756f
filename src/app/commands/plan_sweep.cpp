#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "app/commands/planned_launch.hpp"
#include "app/program/output_file.hpp"
#include "config/include.hpp"
#include "config/inputs.hpp"
#include "core/enum_names.hpp"
#include "core/log.hpp"
#include "core/text.hpp"

namespace llamesh::app {
namespace {

constexpr std::size_t max_rows = 20;
constexpr std::ptrdiff_t rows_to_relieve = 8;
constexpr std::int64_t steps_apart = 32;

template <class E>
std::string name_of(E of) {
  for (const auto& [name, value] : enum_names(E{}).words)
    if (value == of) return std::string(name);
  return "";
}

/// A planned launch.
struct Row {
  train::Inputs inputs;
  std::string mesh;
  bool keeps_bf16_weights;
  plan::StepPlan step;
  bool fits;

  // Columns of the table.
  std::string_view strategy() const { return sharding::name_of(inputs.sharding.strategy); }
  std::string checkpointing() const { return name_of(inputs.memory.activation_checkpointing); }
  std::string offload() const { return name_of(inputs.sharding.offload); }
  /// Returns what crosses nodes as codes, or that replicas train apart.
  const char* relief() const {
    if (inputs.optimizer.outer.enabled()) return "apart";
    const bool weights = inputs.sharding.gather != sharding::GatherDType::automatic;
    const bool gradients = inputs.sharding.reduce_dtype != sharding::ReduceDType::automatic;
    return weights && gradients ? "both" : weights ? "weights" : gradients ? "gradients" : "";
  }
};

/// Pipeline stages, and groups of layers in each of them.
struct Stages {
  int stages, chunks;
};

/// Plans a launch with all meshes, strategies, checkpointing modes and micro-batches, and, if none
/// of them fits, with offloading; then the fastest ones that wait for the network with less for it
/// to do. Keys set on the command line keep their values.
class Sweep {
 public:
  explicit Sweep(const PlanArguments& asked)
      : asked_(asked),
        planner_(asked),
        inputs_(config::load_inputs(asked.inputs, asked.overrides)) {
    validate(asked.imbalance == 1 || inputs_.model.num_experts > 0,
             "--imbalance is {:g}, but the model has no experts; leave it out", asked.imbalance);
  }

  std::vector<Row> rows() {
    using enum sharding::Offload;
    for (const auto offload :
         values("sharding.offload", inputs_.sharding.offload,
                {sharding::Offload::none, optimizer, sharding::Offload::all})) {
      inputs_.sharding.offload = offload;
      add_launches();
      if (std::ranges::any_of(rows_, &Row::fits)) break;
    }
    relieve_fastest();
    return std::move(rows_);
  }
  /// Returns the first user error that rejected a launch.
  const std::optional<std::string>& refusal() const { return refusal_; }

 private:
  void add_launches() {
    auto in = inputs_;
    if (!config::sets(asked_.overrides, "pipeline.layers")) in.pipeline.layers.clear();
    for (const auto& [stages, chunks] : stage_sizes())
      for (const int tensor : values("mesh.axes.tensor", inputs_.mesh.tensor, {1, 2, 4, 8}))
        for (const int expert : values("mesh.axes.expert", inputs_.mesh.expert, expert_sizes()))
          for (const int context :
               values("mesh.axes.context", inputs_.mesh.context, context_sizes()))
            for (const auto strategy :
                 values("sharding.strategy", inputs_.sharding.strategy, strategies(stages))) {
              in.mesh.pipeline = stages;
              in.pipeline.chunks = chunks;
              in.mesh.tensor = tensor;
              in.mesh.expert = expert;
              in.mesh.context = context;
              in.sharding.strategy = strategy;
              add_checkpointing(in);
            }
  }

  /// Plans the fastest launches again, with codes between nodes and with replicas that train apart,
  /// if a tenth of a step is exposed communication and some bytes cross nodes.
  void relieve_fastest() {
    std::vector<Row> slow;
    for (const auto& row : rows_)
      if (row.fits && row.step.exposed_seconds > 0.1 * row.step.seconds &&
          std::ranges::any_of(row.step.traffic_between_nodes,
                              [](const auto& axis) { return axis.second > 0; }))
        slow.push_back(row);
    std::ranges::stable_sort(slow, {}, [](const Row& row) { return row.step.seconds; });
    if (std::ssize(slow) > rows_to_relieve) slow.erase(slow.begin() + rows_to_relieve, slow.end());
    for (const auto& row : slow) {
      quantize(row.inputs);
      train_apart(row);
    }
  }

  void quantize(train::Inputs in) {
    using sharding::GatherDType;
    using sharding::ReduceDType;
    if (config::sets(asked_.overrides, "sharding.gather") ||
        config::sets(asked_.overrides, "sharding.reduce_dtype"))
      return;
    const auto weights =
        in.precision.linear == model::LinearPrecision::same ? GatherDType::int8 : GatherDType::fp8;
    for (const auto& [gather, reduce] :
         {std::pair(weights, ReduceDType::int8), std::pair(weights, ReduceDType::automatic),
          std::pair(GatherDType::automatic, ReduceDType::int8)}) {
      in.sharding.gather = gather;
      in.sharding.reduce_dtype = reduce;
      if (add(in)) return;  // else one of them does not cross nodes
    }
  }

  void train_apart(const Row& row) {
    const auto replicas = row.step.traffic_between_nodes.find("replicate");
    if (config::sets(asked_.overrides, "optimizer.outer.every_steps") ||
        replicas == row.step.traffic_between_nodes.end() || replicas->second == 0)
      return;
    auto in = row.inputs;
    in.optimizer.outer.every_steps = steps_apart;
    add(in);
  }

  /// Stops at the first mode that does not fit with the smallest micro-batch: the next ones take
  /// more memory.
  void add_checkpointing(train::Inputs& in) {
    using enum model::ActivationCheckpointing;
    for (const auto checkpointing :
         values("memory.activation_checkpointing", inputs_.memory.activation_checkpointing,
                {full, selective, none})) {
      in.memory.activation_checkpointing = checkpointing;
      if (!add_micro_batches(in)) return;
    }
  }

  /// Returns pipelines to try: powers of two of stages, on nodes of their own, with 1 or 4 groups
  /// of layers each.
  std::vector<Stages> stage_sizes() const {
    const auto layers = inputs_.model.num_hidden_layers;
    const int nodes = asked_.ranks_per_node == 0 ? 1 : asked_.ranks / asked_.ranks_per_node;
    std::vector<int> counts{1};
    for (int n = 2; n <= std::min(nodes, 16) && n <= layers; n *= 2) counts.push_back(n);
    std::vector<Stages> sizes;
    for (const int stages : values("mesh.axes.pipeline", inputs_.mesh.pipeline, counts))
      for (const int chunks : values("pipeline.chunks", inputs_.pipeline.chunks, {1, 4}))
        if (chunks == 1 || (stages > 1 && std::int64_t{stages} * chunks <= layers))
          sizes.push_back({stages, chunks});
    return sizes;
  }

  /// Returns strategies that differ: with stages, weights stay gathered until their backward pass.
  std::vector<sharding::Strategy> strategies(int stages) const {
    using enum sharding::Strategy;
    if (stages > 1 &&
        inputs_.sharding.reshard_after_forward == sharding::ReshardAfterForward::by_strategy)
      return {shard_grad_op, hybrid_shard_zero2, no_shard};
    return {full_shard, shard_grad_op, hybrid_shard, hybrid_shard_zero2, no_shard};
  }

  /// Returns true if pipeline stages wait for so long that the launch cannot be the fastest: for at
  /// least (p - 1) / (v m) of the time that ranks compute in launches without stages.
  bool waits_too_long(const train::Inputs& in) const {
    const auto& mesh = in.mesh;
    if (mesh.pipeline == 1 || rows_.empty()) return false;
    const auto groups = static_cast<double>(asked_.ranks) /
                        static_cast<double>(mesh.pipeline * mesh.tensor * mesh.context);
    const auto micro_batches = static_cast<double>(in.train.global_batch) / groups /
                               static_cast<double>(in.train.micro_batch);
    const double waits = (mesh.pipeline - 1) / (in.pipeline.chunks * micro_batches);
    const auto work = work_.contains(work_of(in)) ? work_.at(work_of(in)) : least_work_;
    return fastest_ <= work * (1 + waits);
  }

  /// What the time that ranks compute in a step depends on most.
  using Work = std::tuple<int, int, model::ActivationCheckpointing>;
  static Work work_of(const train::Inputs& in) {
    return {in.mesh.tensor, in.mesh.context, in.memory.activation_checkpointing};
  }
  void note_work(const train::Inputs& in, const plan::StepPlan& step, bool fits) {
    const double work = step.seconds - step.exposed_seconds;
    const auto [known, is_new] = work_.try_emplace(work_of(in), work);
    known->second = std::min(known->second, work);
    least_work_ = std::min(least_work_, work);
    if (fits) fastest_ = std::min(fastest_, step.seconds);
  }

  /// Returns the sizes of an expert axis that divide the experts and the ranks of a node.
  std::vector<int> expert_sizes() const {
    const int per_node = asked_.ranks_per_node == 0 ? asked_.ranks : asked_.ranks_per_node;
    std::vector<int> sizes{1};
    for (int n = 2; n <= per_node && n <= inputs_.model.num_experts; ++n)
      if (inputs_.model.num_experts % n == 0 && per_node % n == 0) sizes.push_back(n);
    return sizes;
  }

  /// Returns the sizes of a context axis: powers of two that leave a rank at least 8,192 tokens,
  /// below which more sequences are faster.
  std::vector<int> context_sizes() const {
    std::vector<int> sizes{1};
    for (int n = 2; n <= asked_.ranks && inputs_.data.sequence_length / n >= 8192; n *= 2)
      sizes.push_back(n);
    return sizes;
  }

  template <class T>
  std::vector<T> values(const std::string& key, T given, std::vector<T> all) const {
    return config::sets(asked_.overrides, key) ? std::vector<T>{given} : all;
  }

  /// Stops at the first micro-batch that does not fit: larger ones take more memory. Returns
  /// false if no smaller one fits.
  bool add_micro_batches(train::Inputs& in) {
    bool any_fits = false;
    for (const auto micro_batch : values<std::int64_t>("train.micro_batch", in.train.micro_batch,
                                                       {1, 2, 4, 8, 16, 32, 64})) {
      in.train.micro_batch = micro_batch;
      if (waits_too_long(in)) break;
      const auto fits = add(in);
      if (fits && !*fits) return any_fits;
      any_fits |= fits.has_value();
    }
    return true;
  }

  /// Plans a launch and adds its row. Returns whether it fits; empty: it was refused.
  std::optional<bool> add(const train::Inputs& in) {
    progress_.step();
    try {
      const auto planned = planner_.plan(in);
      const auto mesh = comm::to_string(planned.setup.mesh);
      note_work(in, planned.step, planned.fits());
      const auto is_known = [&](const Row& row) {  // strategies may coincide
        return row.mesh == mesh && row.step.seconds == planned.step.seconds &&
               row.step.peak == planned.step.peak;
      };
      if (std::ranges::none_of(rows_, is_known))
        rows_.push_back({in, mesh, planned.keeps_bf16_weights(), planned.step, planned.fits()});
      return planned.fits();
    } catch (const Error& error) {
      if (error.code() != ExitCode::bad_input) throw;
      if (!refusal_) refusal_ = error.what();
      return std::nullopt;
    }
  }

  const PlanArguments& asked_;
  LaunchPlanner planner_;
  train::Inputs inputs_;
  std::vector<Row> rows_;
  static constexpr double unknown = std::numeric_limits<double>::infinity();
  std::map<Work, double> work_;  ///< seconds
  double least_work_ = unknown, fastest_ = unknown;
  std::optional<std::string> refusal_;
  ProgressLog progress_{"sweep: launches planned"};
};

void print_as_json(const std::vector<Row>& rows) {
  Json all = Json::array();
  for (const auto& row : rows)
    all.push_back({{"strategy", row.strategy()},
                   {"mesh", row.mesh},
                   {"chunks", row.inputs.pipeline.chunks},
                   {"activation_checkpointing", row.checkpointing()},
                   {"offload", row.offload()},
                   {"micro_batch", row.inputs.train.micro_batch},
                   {"gather", name_of(row.inputs.sharding.gather)},
                   {"reduce_dtype", name_of(row.inputs.sharding.reduce_dtype)},
                   {"outer_every_steps", row.inputs.optimizer.outer.every_steps},
                   {"keep_bf16_weights", row.keeps_bf16_weights},
                   {"valley_bytes", row.step.allocated_after_step},
                   {"peak_bytes", row.step.peak},
                   {"host_bytes", row.step.on_host},
                   {"step_seconds", row.step.seconds},
                   {"exposed_seconds", row.step.exposed_seconds},
                   {"tokens_per_second", row.step.tokens_per_second},
                   {"mfu", row.step.mfu}});
  print_json({{"fitting", all}});
}

void print_as_table(const std::vector<Row>& rows) {
  fmt::print("{:<19}{:<50}{:>6} {:<15}{:<11}{:>6} {:<9}{:>12}{:>10}{:>10}{:>12}{:>7}\n", "strategy",
             "mesh", "chunks", "checkpointing", "offload", "micro", "network", "peak", "step s",
             "exposed", "tokens/s", "MFU %");
  for (const auto& row : rows)
    fmt::print(
        "{:<19}{:<50}{:>6} {:<15}{:<11}{:>6} {:<9}{:>12}{:>10.3f}{:>10.3f}{:>12.0f}{:>7.1f}\n",
        row.strategy(), row.mesh, row.inputs.pipeline.chunks, row.checkpointing(), row.offload(),
        row.inputs.train.micro_batch, row.relief(), bytes_text(row.step.peak), row.step.seconds,
        row.step.exposed_seconds, row.step.tokens_per_second, 100 * row.step.mfu);
}

[[noreturn]] void fail_for_all(const PlanArguments& asked, const std::vector<Row>& rows,
                               const Sweep& sweep) {
  if (rows.empty()) fail(ExitCode::bad_input, "{}", sweep.refusal().value_or("nothing to plan"));
  const auto& least =
      *std::ranges::min_element(rows, {}, [](const Row& row) { return row.step.peak; });
  fail(ExitCode::bad_input,
       "nothing fits into {} on {} ranks: the smallest peak is {} ({}, {}, "
       "checkpointing {}, offload {}, micro-batch {}: {}); use more ranks, a shorter "
       "data.sequence_length or a "
       "smaller model",
       asked.hardware, asked.ranks, bytes_text(least.step.peak), least.strategy(), least.mesh,
       least.checkpointing(), least.offload(), least.inputs.train.micro_batch,
       train::describe(least.step.at_peak));
}

}  // namespace

int plan_sweep(const PlanArguments& asked) {
  Sweep sweep(asked);
  auto rows = sweep.rows();
  const auto all = rows;
  std::erase_if(rows, [](const Row& row) { return !row.fits; });
  if (rows.empty()) fail_for_all(asked, all, sweep);
  std::ranges::stable_sort(rows, std::greater<>{},
                           [](const Row& row) { return row.step.tokens_per_second; });
  if (asked.output == Output::json) {
    print_as_json(rows);
    return 0;
  }
  const auto count = rows.size();
  rows.resize(std::min(rows.size(), max_rows));
  print_as_table(rows);
  if (count > rows.size()) fmt::print("and {} more that fit\n", count - rows.size());
  if (std::ranges::any_of(rows,
                          [](const Row& row) { return row.inputs.optimizer.outer.enabled(); }))
    fmt::print("apart: with optimizer.outer.every_steps={}, which costs some loss\n", steps_apart);
  return 0;
}

}  // namespace llamesh::app
