#include "core/slurm/slurm_job.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <future>
#include <sstream>
#include <string_view>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "core/process.hpp"
#include "core/slurm/own_job.hpp"
#include "core/text.hpp"

namespace llamesh {
namespace {

constexpr auto guard_name = "llamesh-guard";
constexpr int max_ranks_per_node = 1 << 16;
/// Arguments: the job's id, its restart count, its batch node, and a command to run on each node
/// with the argument after it.
constexpr auto guard_script = R"sh(
trap '' USR2
exec >/dev/null 2>&1
while sleep 10; do
  job=$(scontrol -o show job "$1") || continue
  case $job in *" Restarts=$2 "*) ;; *) exit ;; esac
  list=$(squeue -h -o %N -j "$1")
  [ "$list" ] || continue
  nodes=$(scontrol show hostnames "$list") || continue
  echo "$nodes" | grep -qx "$3" && continue
  echo "$nodes" | xargs -P 32 -I@ \
    timeout -k 1 15 srun --mpi=none --overlap --nodes=1 --ntasks=1 --nodelist=@ sh -c "$4" sh "$5"
  scontrol requeue "$1"
done
)sh";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  validate(value != nullptr && *value != '\0',
           "{} is not set: llamesh supervise runs in a Slurm batch script, see "
           "slurm/resilient.sbatch",
           name);
  return value;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// Runs a command for up to so many seconds. Returns its output.
std::string ask(const std::vector<std::string>& command, const char* seconds = "15") {
  std::vector<std::string> words{"timeout", "-k", "1", seconds};
  words.insert(words.end(), command.begin(), command.end());
  return output_of(words);
}

/// Expands Slurm's "node[1-3,7]".
std::vector<std::string> hosts_in(const std::string& list) {
  return words_of(ask({"scontrol", "show", "hostnames", list}));
}

/// Returns own_job_id(), or throws outside a job.
std::string own_id() {
  environment("SLURM_JOB_ID");
  const auto id = own_job_id();
  validate(id.has_value(), "SLURM_JOB_ID is {}, which is not a job id",
           excerpt(environment("SLURM_JOB_ID")));
  return *id;
}

bool is_down(std::string_view state) {
  return state.starts_with("down") || state.starts_with("fail");
}

/// Calls `task` with each node's index, for up to 32 nodes at the same time: Slurm's controller has
/// to create a step for each.
void on_each(const std::vector<std::string>& nodes, const std::function<void(std::size_t)>& task) {
  constexpr std::size_t max_at_once = 32;
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < nodes.size(); i = next++) task(i);
  };
  std::vector<std::future<void>> workers;
  for (std::size_t i = 0; i < std::min(nodes.size(), max_at_once); ++i)
    workers.push_back(std::async(std::launch::async, work));
  for (auto& worker : workers) worker.get();
}

/// Returns true if the node does not answer slurmctld.
bool is_silent(std::string_view state) {
  return state.ends_with('*');
}

}  // namespace

std::vector<std::string> launcher_of(const std::vector<std::string>& command) {
  std::vector<std::string> words{command.front()};
  for (std::size_t i = 1; i < command.size(); ++i) {
    const bool is_value = command[i - 1] == "--mpi";
    if (command[i] == "--mpi" || command[i].starts_with("--mpi=") || is_value)
      words.push_back(command[i]);
  }
  return words;
}

SlurmJob::SlurmJob(std::vector<std::string> launcher, std::string clean_up)
    : launcher_(std::move(launcher)),
      clean_up_(std::move(clean_up)),
      id_(own_id()),
      nodes_(hosts_in(environment("SLURM_JOB_NODELIST"))) {
  const auto ranks = environment("SLURM_NTASKS_PER_NODE");
  const auto* const end = ranks.data() + ranks.size();
  const auto [rest, error] = std::from_chars(ranks.data(), end, ranks_per_node_);
  validate(error == std::errc() && rest == end && ranks_per_node_ > 0 &&
               ranks_per_node_ <= max_ranks_per_node,
           "SLURM_NTASKS_PER_NODE is {}; give --ntasks-per-node in the script", excerpt(ranks));
  find_restarts();
  const char* num_nodes = std::getenv("SLURM_JOB_NUM_NODES");
  validate(
      !nodes_.empty() && (num_nodes == nullptr || std::to_string(nodes_.size()) == num_nodes),
      "scontrol show hostnames lists {} nodes for job {}, which has {}: it prints something else",
      nodes_.size(), id_, num_nodes == nullptr ? "some" : num_nodes);
}

/// A job that is submitted from a requeued one inherits the variable, so Slurm itself is asked.
/// Runs that this program launches see what it says.
void SlurmJob::find_restarts() {
  restarts_ = number_in_environment("SLURM_RESTART_COUNT");
  constexpr std::string_view key = "Restarts=";
  for (const auto& word : words_of(ask({"scontrol", "-o", "show", "job", id_})))
    if (word.starts_with(key)) restarts_ = word.substr(key.size());
  if (restarts_.empty()) restarts_ = "0";
  if (restarts_ == "0")
    unsetenv("SLURM_RESTART_COUNT");  // as in Slurm
  else
    setenv("SLURM_RESTART_COUNT", restarts_.c_str(), 1);
}

bool SlurmJob::runs() const {
  constexpr int max_tries = 60;
  const auto ask_for_job = [this] {
    const bool answers = ask({"scontrol", "ping"}).find("UP") != std::string::npos;
    return words_of(answers ? ask({"scontrol", "-o", "show", "job", id_}) : "");
  };
  auto fields = ask_for_job();
  for (int i = 0; i < max_tries && fields.empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::seconds(10));
    fields = ask_for_job();
  }
  const auto says = [&](const std::string& field) {
    return std::ranges::find(fields, field) != fields.end();
  };
  return says("JobState=RUNNING") && says("Restarts=" + restarts_);
}

JobNodes SlurmJob::living_nodes() const {
  const auto list = words_of(ask({"squeue", "-h", "-o", "%N", "-j", id_}));
  if (list.empty()) return {nodes_, {}};
  JobNodes nodes{hosts_in(list.front()), {}};
  // A site's wrapper may print other text.
  std::erase_if(nodes.usable, [this](const auto& node) {
    return std::ranges::find(nodes_, node) == nodes_.end();
  });
  if (nodes.usable.empty()) return {nodes_, {}};  // no answer
  for (const auto& line : lines_of(ask({"sinfo", "-h", "-N", "-o", "%N %T", "-n", list.front()}))) {
    const auto words = words_of(line);
    if (words.size() != 2 || !(is_down(words[1]) || is_silent(words[1]))) continue;
    if (std::erase(nodes.usable, words[0]) > 0 && !is_down(words[1]))
      nodes.silent.push_back(words[0]);
  }
  return nodes;
}

std::vector<std::string> SlurmJob::launch_on(const std::string& node) const {
  auto command = launcher_;
  for (const char* option : {"--overlap", "--nodes=1", "--ntasks=1", "--ntasks-per-node=1"})
    command.emplace_back(option);
  command.push_back("--nodelist=" + node);
  return command;
}

std::vector<std::string> SlurmJob::nodes_without_launch(
    const std::vector<std::string>& nodes) const {
  std::vector<std::string> output(nodes.size());  // srun may return 0 although nothing was launched
  on_each(nodes, [&](std::size_t i) {
    auto words = launch_on(nodes[i]);
    words.insert(words.end(), {"echo", "launched"});
    output[i] = ask(words, "20");
  });
  std::vector<std::string> bad;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (output[i] != "launched\n") bad.push_back(nodes[i]);
  return bad;
}

void SlurmJob::clean_up() const {
  auto [nodes, silent] = living_nodes();
  nodes.insert(nodes.end(), silent.begin(), silent.end());  // they may answer in time
  on_each(nodes, [this, &nodes = nodes](std::size_t i) {
    auto words = launch_on(nodes[i]);
    words.insert(words.end(), {"sh", "-c", clean_up_, "sh", job_name()});
    ask(words);
  });
}

void SlurmJob::end_steps() const {
  end_steps(/*guards=*/false);
}

void SlurmJob::end_guard() const {
  end_steps(/*guards=*/true);
}

void SlurmJob::end_steps(bool guards) const {
  for (const auto& line : lines_of(ask({"squeue", "-s", "-h", "-o", "%i %j", "-j", id_}))) {
    const auto words = words_of(line);
    if (words.size() == 2 && (words.back() == guard_name) == guards &&
        !words.front().ends_with(".batch") && !words.front().ends_with(".extern"))
      ask({"scancel", "--signal=KILL", words.front()});
  }
}

void SlurmJob::requeue(const std::vector<std::string>& excluded) const {
  const auto job = ask({"scontrol", "-o", "show", "job", id_});
  std::signal(SIGTERM, SIG_IGN);  // Slurm sends it to all that the script runs, also to scontrol
  ask({"scontrol", "requeue", id_});
  if (excluded.empty()) return;
  constexpr std::string_view key = "ExcNodeList=";
  auto list = fmt::format("{}", fmt::join(excluded, ","));
  if (const auto at = job.find(key); at != job.npos && job.compare(at + key.size(), 1, "(") != 0)
    list = job.substr(at + key.size(), job.find_first_of(" \n", at) - at - key.size()) + "," + list;
  ask({"scontrol", "update", "JobId=" + id_, "ExcNodeList=" + list});
}

std::vector<std::string> SlurmJob::guard_command(const std::string& node) const {
  auto command = launch_on(node);
  command.push_back(std::string("--job-name=") + guard_name);
  for (const auto& word :
       {std::string("sh"), std::string("-c"), std::string(guard_script), std::string("sh"), id_,
        restarts_, nodes_.front(), clean_up_, job_name()})
    command.push_back(word);
  return command;
}

}  // namespace llamesh
