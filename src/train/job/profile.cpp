#include "train/job/profile.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/mpi/exchange.hpp"
#include "core/file.hpp"
#include "core/log.hpp"
#include "core/trace.hpp"
#include "device/device.hpp"
#include "train/job/shared_folder.hpp"

namespace llamesh::train {
namespace {

using nlohmann::json;

constexpr std::size_t clock_samples = 15;
using Stamps = std::array<std::int64_t, clock_samples>;

/// Thread ids for a rank's lanes: each thread has one, and so has each stream within it. Numbers
/// start at 1000 x rank + 1: to Perfetto, thread 0 is Linux' idle thread, the same in all
/// processes, and a thread with its process's number is the main one, which comes first.
class Lanes {
 public:
  Lanes(int rank, int compute_thread) : rank_(rank), compute_thread_(compute_thread) {
    tid("", compute_thread);
  }
  std::size_t tid(const std::string& lane, int thread) {
    const auto next = 1000 * static_cast<std::size_t>(rank_) + tids_.size() + 1;
    return tids_.try_emplace({lane, thread}, next).first->second;
  }
  /// Returns a metadata line for each lane.
  std::string names() const {
    std::string lines;
    for (const auto& [key, tid] : tids_) {
      const auto& [lane, thread] = key;
      const auto name = !lane.empty() ? lane : thread == compute_thread_ ? "compute" : "other";
      lines += metadata(rank_, tid, "thread_name", {{"name", name}});
      lines += metadata(rank_, tid, "thread_sort_index", {{"sort_index", tid}});
    }
    return lines;
  }
  static std::string metadata(int rank, std::size_t tid, const char* what, const json& args) {
    return json{{"ph", "M"}, {"pid", rank}, {"tid", tid}, {"name", what}, {"args", args}}.dump() +
           '\n';
  }

 private:
  int rank_;
  int compute_thread_;
  std::map<std::pair<std::string, int>, std::size_t> tids_;
};

double microseconds(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1000;
}

json arguments_of(const TraceEvent& event, std::int64_t origin) {
  json arguments = json::object();
  const std::string_view category = event.category.data();
  const std::string subject = event.subject.data();
  if (!subject.empty())
    arguments[category == "wait"         ? "for"
              : category == "collective" ? "unit"
              : category == "pass"       ? "module"
              : category == "stage"      ? "of"
                                         : "number"] = subject;
  if (category == "collective") arguments["kind"] = event.name.data();
  if (category == "pass") arguments["pass"] = event.name.data();
  if (event.axis.front() != '\0') arguments["axis"] = event.axis.data();
  if (event.bytes != 0) arguments["bytes"] = event.bytes;
  if (event.number != 0) arguments["sequence"] = event.number;
  if (event.asked != 0) arguments["asked"] = microseconds(event.asked - origin);
  return arguments;
}

}  // namespace

Profile::Profile(const comm::Communicator& world, const Setup& setup)
    : world_(world),
      setup_(setup),
      steps_(profiled_steps(setup.inputs.profile)),
      folder_(std::filesystem::path(setup.inputs.run.folder) / "trace") {}

void Profile::check(std::int64_t step) const {
  if (steps_.last < steps_.first) return;
  const std::int64_t steps = setup_.inputs.train.steps;
  const StepRange traced{std::max(steps_.first, step + 1), std::min(steps_.last, steps)};
  const bool all = traced.first == steps_.first && traced.last == steps_.last;
  if (!all && world_.rank() == 0)
    spdlog::warn("profile.steps is {}, but this launch takes steps {} to {}: {}",
                 setup_.inputs.profile.steps, step + 1, steps,
                 traced.first > traced.last
                     ? "nothing is traced"
                     : fmt::format("only {}-{} are traced", traced.first, traced.last));
  if (traced.first > traced.last) return;
  std::unique_ptr<BorrowedFolder> made;
  comm::agree(world_, [&] {
    if (world_.rank() == 0) made = std::make_unique<BorrowedFolder>(folder_);
  });
  const auto try_file = [&] {
    write_durably(file_of(world_.rank()), "a trace can be written\n");
    std::filesystem::remove(file_of(world_.rank()));
  };
  comm::agree(world_, try_file, "whether a trace can be written");
}

void Profile::begin(std::int64_t step) {
  if (!steps_.contains(step)) return;
  if (first_ == 0) {
    align_clocks();
    device::start_profiler();
    first_ = step;
  }
  Trace::instance().start();
  Trace::instance().open("step", "step", std::to_string(step));
}

bool Profile::end(std::int64_t step) {
  if (!steps_.contains(step)) return false;
  Trace::instance().close();
  Trace::instance().stop();
  last_ = step;
  return step == steps_.last;
}

/// Aligns the clocks: rank 0's clock at the last barrier is ts 0. A host's clock offset is its
/// first rank's median over several barriers: all ranks on a host share a clock.
void Profile::align_clocks() {
  Stamps mine{};
  for (auto& stamp : mine) {
    world_.barrier("the clocks of the trace");
    stamp = Trace::now();
  }
  const auto all = comm::all_gather(world_, mine, "the clocks of the trace");
  const auto& hosts = setup_.topology.host_of;
  const auto& host = hosts[static_cast<std::size_t>(world_.rank())];
  const auto first = static_cast<std::size_t>(std::ranges::find(hosts, host) - hosts.begin());
  Stamps offsets{};
  for (std::size_t i = 0; i < clock_samples; ++i) offsets[i] = all[first][i] - all[0][i];
  std::ranges::sort(offsets);
  origin_ = all[0].back() + offsets[clock_samples / 2];
  clock_spread_ = microseconds(offsets[3 * clock_samples / 4] - offsets[clock_samples / 4]);
}

std::filesystem::path Profile::file_of(int rank) const {
  return folder_ / fmt::format("rank-{:05}.jsonl", rank);
}

/// Formats the events, one per line. Sets the number of lost ones.
std::string Profile::own_events(std::int64_t& lost) const {
  const auto recording = Trace::instance().take();
  lost = recording.lost;
  const int rank = world_.rank();
  const auto& host = setup_.topology.host_of[static_cast<std::size_t>(rank)];
  Lanes lanes(rank, recording.compute_thread);
  const auto first = lanes.tid("", recording.compute_thread);
  std::string lines = Lanes::metadata(
      rank, first, "process_name",
      {{"name", fmt::format("rank {} on {}", rank, host)}, {"clock_spread_us", clock_spread_}});
  lines += Lanes::metadata(rank, first, "process_sort_index", {{"sort_index", rank}});
  std::int64_t end = origin_;
  for (const TraceEvent& event : recording.events) {
    lines += json{{"ph", "X"},
                  {"pid", rank},
                  {"tid", lanes.tid(event.lane.data(), event.thread)},
                  {"ts", microseconds(event.start - origin_)},
                  {"dur", microseconds(event.end - event.start)},
                  {"name", title_of(event)},
                  {"cat", event.category.data()},
                  {"args", arguments_of(event, origin_)}}
                 .dump() +
             '\n';
    end = std::max(end, event.end);
  }
  if (lost > 0)
    lines += json{{"ph", "i"},
                  {"s", "p"},
                  {"pid", rank},
                  {"tid", first},
                  {"ts", microseconds(end - origin_)},
                  {"name", fmt::format("no room for {} more events", lost)}}
                 .dump() +
             '\n';
  return lines + lanes.names();
}

/// Merges the ranks' files into one.
void Profile::merge() const {
  replace_durably(folder_ / "trace.json", [&](Descriptor& file) {
    constexpr std::size_t piece = 1 << 20;
    std::string text = R"({"displayTimeUnit":"ms","traceEvents":[)";
    const char* separator = "\n";
    for (int rank = 0; rank < world_.size(); ++rank)
      for_each_line(Descriptor::to_read(file_of(rank), ExitCode::io_failure),
                    [&](std::string_view line, bool /*ended*/) {
                      text.append(std::exchange(separator, ",\n")).append(line);
                      if (text.size() < piece) return;
                      file.append(text);
                      text.clear();
                    });
    file.append(text + "\n]}\n");
  });
}

/// Runs `write` on every rank. If it fails on some, rank 0 warns with the first one's reason, and
/// all ranks return false.
bool Profile::all_can(const std::function<void()>& write, const char* purpose) const {
  std::string trouble;
  try {
    write();
  } catch (const std::exception& any) {
    trouble = as_error(any).what();
  }
  if (world_.max(std::int64_t{!trouble.empty()}, purpose) == 0) return true;
  const auto troubles = world_.all_gather(trouble);
  const auto first = std::ranges::find_if(troubles, [](const auto& t) { return !t.empty(); });
  const auto rank = static_cast<std::size_t>(first - troubles.begin());
  if (world_.rank() == 0)
    spdlog::warn("steps {}-{} are not traced: rank {} on {}: {}; the run goes on", first_, last_,
                 rank, setup_.topology.host_of[rank], *first);
  return false;
}

void Profile::write() {
  if (last_ == 0) return;
  device::stop_profiler();
  std::int64_t lost = 0;
  const auto write_own = [&] {
    const auto events = own_events(lost);
    make_folder(folder_);
    write_durably(file_of(world_.rank()), events);
  };
  const auto write_all = [&] {
    if (world_.rank() == 0) merge();
  };
  const bool written =
      all_can(write_own, "the trace of each rank") && all_can(write_all, "the trace of all ranks");
  std::error_code ignored;  // now part of the whole
  std::filesystem::remove(file_of(world_.rank()), ignored);
  lost = world_.sum(lost, "events that the trace lacks");
  if (written && world_.rank() == 0)
    spdlog::info("steps {}-{} are traced in {}: open it in https://ui.perfetto.dev", first_, last_,
                 (folder_ / "trace.json").string());
  if (written && lost > 0 && world_.rank() == 0)
    spdlog::warn(
        "the trace lacks {} events, those after the first {} of a rank: trace fewer steps "
        "(profile.steps)",
        lost, Trace::max_events);
  first_ = last_ = 0;
}

}  // namespace llamesh::train
