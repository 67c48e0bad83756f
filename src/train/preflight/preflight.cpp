#include "train/preflight/preflight.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string_view>

#include "train/engine/kernel_choice.hpp"
#include "train/job/shared_folder.hpp"
#include "train/preflight/checks.hpp"

namespace llamesh::train {

Subject subject_of(const comm::Communicator& world, const Setup& setup) {
  const auto& hosts = setup.topology.host_of;
  const auto own = std::ranges::find(hosts, hosts[static_cast<std::size_t>(world.rank())]);
  return {world, setup, hosts, own - hosts.begin() == world.rank()};
}

void collect(Finding& finding, const Subject& at, const std::string& trouble) {
  const auto all = at.world.all_gather(trouble);
  for (std::size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) finding.bad.emplace(at.host_of(r), all[r]);
}

std::vector<int> outliers(const std::vector<std::string>& texts) {
  std::map<std::string_view, int> count;
  for (const auto& text : texts) ++count[text];
  const auto frequency = [&](const std::string& text) { return count.at(text); };
  const auto usual = std::ranges::max_element(texts, {}, frequency);  // the first among equals
  std::vector<int> odd;
  for (std::size_t r = 0; r < texts.size(); ++r)
    if (texts[r] != *usual) odd.push_back(static_cast<int>(r));
  return odd;
}

std::string summary(const std::vector<Finding>& findings) {
  std::set<std::string> hosts;
  std::string lines;
  std::string warnings;
  for (const auto& finding : findings) {
    for (const auto& warning : finding.warnings)
      warnings += fmt::format("warning: {}: {}\n", finding.name, warning);
    for (const auto& [host, why] : finding.bad) {
      hosts.insert(host);
      lines += fmt::format("  {} on {}: {}\n", finding.name, host, why);
    }
  }
  if (hosts.empty()) return warnings + "All checks passed.\n";
  return fmt::format("{}{} bad; leave {} out: sbatch --exclude={}\n{}", warnings,
                     hosts.size() == 1 ? "A node is" : "Nodes are",
                     hosts.size() == 1 ? "it" : "them", fmt::join(hosts, ","), lines);
}

ExitCode preflight(const comm::Communicator& world, const Setup& setup, const std::string& build) {
  const auto at = subject_of(world, setup);
  const std::filesystem::path folder = setup.inputs.run.folder;

  std::vector<Finding> findings;
  findings.push_back(check_build(at, build));
  findings.push_back(check_launch(at));
  findings.push_back({"mesh",
                      fmt::format("{}, {}, ranks: {}, hosts: {}", comm::to_string(setup.mesh),
                                  sharding::name_of(setup.inputs.sharding.strategy), world.size(),
                                  std::set<std::string>(at.hosts.begin(), at.hosts.end()).size()),
                      {}});
  {
    comm::DeviceMesh mesh(world, setup.topology, setup.mesh);
    findings.push_back(check_collectives(at, mesh));
    set_threads(setup.inputs.train.threads, world);
    choose_bf16_products(world, setup.inputs.precision.parameters);
    std::ranges::move(rate_findings(at, mesh), std::back_inserter(findings));
  }
  {
    std::unique_ptr<BorrowedFolder> borrowed;
    comm::agree(world, [&] {
      if (world.rank() == 0) borrowed = std::make_unique<BorrowedFolder>(folder);
    });
    findings.push_back(check_folder(at, folder));
    findings.push_back(check_room(at, folder));
    world.barrier();
  }
  if (setup.inputs.checkpoint.memory.enabled() && setup.plan_memory)
    findings.push_back(check_memory_checkpoints(at));
  findings.push_back(check_clocks(at));

  if (world.rank() == 0) {
    for (const auto& finding : findings) fmt::print("{:<12} {}\n", finding.name, finding.text);
    fmt::print("{}", summary(findings));
  }
  const bool all_good = std::ranges::all_of(findings, [](const auto& f) { return f.bad.empty(); });
  return all_good ? ExitCode::done : ExitCode::stopped_early;
}

}  // namespace llamesh::train
