#include "comm/mpi/launch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <vector>

namespace llamesh::comm {
namespace {

std::optional<int> number(const Environment& environment, const char* name) {
  const char* text = environment(name);
  if (text == nullptr) return {};
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc{} || end != view.data() + view.size()) return {};
  return value;
}

/// Variables in which a launcher gives a process the number of ranks and its own rank.
struct Source {
  const char* ranks;
  const char* rank;
};

/// Returns true if a resource manager set PMI_SIZE and PMI_RANK for its own tasks, as do srun
/// --mpi=pmi2, srun --mpi=cray_shasta and flux run. Hydra sets them too, for its ranks: there a
/// task of the resource manager is a proxy that starts a node's ranks.
bool is_pmi_of_tasks(const Environment& environment) {
  const auto same = [&](const char* pmi, const char* task) {
    const auto value = number(environment, pmi);
    return value && value == number(environment, task);
  };
  return std::ranges::any_of(std::initializer_list<Source>{{"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
                                                           {"FLUX_JOB_SIZE", "FLUX_TASK_RANK"}},
                             [&](const Source& tasks) {
                               return same("PMI_SIZE", tasks.ranks) && same("PMI_RANK", tasks.rank);
                             });
}

/// mpirun and its like: they know all of their ranks and connect them.
std::optional<Launch> by_mpi_launcher(const Environment& environment) {
  // - Open MPI's mpirun, up to 4 and on PRRTE since 5 (its manual, "Environment variables set for
  //   MPI applications"). IBM's jsrun sets them too, for Spectrum MPI.
  // - jsrun alone: JSM_NAMESPACE_* (IBM Job Step Manager).
  // - Hydra, the mpiexec of MPICH and Intel MPI: PMI-1's variables. HPE's PALS (mpiexec under PBS
  //   on Cray EX) sets them beside PALS_* (pals.h).
  // - flux run: flux-environment(7). The broker of a batch job unsets FLUX_JOB_SIZE for its script.
  for (const Source& source :
       {Source{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
        Source{"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_RANK"}, Source{"PMI_SIZE", "PMI_RANK"},
        Source{"FLUX_JOB_SIZE", "FLUX_TASK_RANK"}}) {
    const auto ranks = number(environment, source.ranks);
    if (!ranks || (source.ranks == std::string_view("PMI_SIZE") && is_pmi_of_tasks(environment)))
      continue;
    return Launch{*ranks, source.ranks, number(environment, source.rank).value_or(0)};
  }
  return {};
}

/// srun sets SLURM_STEP_NUM_TASKS for its tasks; SLURM_NTASKS alone means a shell inside an
/// allocation.
std::optional<Launch> by_slurm(const Environment& environment) {
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})
    if (const auto ranks = number(environment, name)) {
      const bool step = environment("SLURM_STEP_NUM_TASKS") != nullptr;
      // --mpi=pmix sets PMIX_RANK; --mpi=pmi2 sets PMI_RANK and PMI_FD (PMI_RANK alone may be left
      // over from another launcher); --mpi=cray_shasta sets PALS_RANKID, and PMI_CONTROL_PORT if
      // the step has reserved ports (Slurm's mpi_cray_shasta.c).
      const bool pmi = environment("PMIX_RANK") != nullptr ||
                       environment("PALS_RANKID") != nullptr ||
                       (environment("PMI_RANK") != nullptr && environment("PMI_FD") != nullptr);
      return Launch{*ranks, name, step ? number(environment, "SLURM_PROCID").value_or(0) : 0,
                    pmi || *ranks <= 1};
    }
  return {};
}

}  // namespace

Launch detect_launch(const Environment& environment) {
  if (const auto launch = by_mpi_launcher(environment)) return *launch;
  if (const auto launch = by_slurm(environment)) return *launch;
  // prterun (PRRTE without Open MPI's personality) and versions of PALS give each process its rank
  // only; MPI learns the number of ranks from a server or a file.
  for (const char* name : {"PMIX_RANK", "PALS_RANKID"})
    if (const auto rank = number(environment, name))
      return {.ranks = *rank + 1, .variable = name, .rank = *rank, .at_least = true};
  // torchrun sets both. Scripts export WORLD_SIZE alone, with various meanings.
  const auto ranks = number(environment, "WORLD_SIZE"), rank = number(environment, "RANK");
  if (ranks && rank) return {*ranks, "WORLD_SIZE", *rank};
  return {};
}

std::string launch_problem(const Launch& launch, int world_size, std::string_view plugin) {
  if (launch.ranks <= 1 || world_size > 1) return {};
  const auto numbers = fmt::format("{} is {} but MPI sees 1 rank", launch.variable,
                                   launch.at_least ? launch.rank : launch.ranks);
  if (launch.is_shell_in_allocation())
    return fmt::format(
        "{}: no launcher started this process; start the ranks with {}mpirun, or this one alone "
        "with mpirun -n 1",
        numbers, plugin.empty() ? "" : fmt::format("srun --mpi={} or ", plugin));
  if (launch.variable == "WORLD_SIZE")
    return numbers +
           ": torchrun starts processes without MPI; start the ranks with mpirun or srun "
           "--mpi=pmix";
  if (launch.variable.starts_with("SLURM"))
    return plugin.empty()
               ? numbers +
                     ": the ranks cannot find each other, and srun --mpi=list has no plugin for "
                     "the MPI that the program was built with; start them with its mpirun"
               : fmt::format(
                     "{}: the ranks cannot find each other; start them with srun --mpi={} (see "
                     "srun --mpi=list) or mpirun",
                     numbers, plugin);
  if (launch.variable.starts_with("FLUX"))
    return numbers +
           ": the ranks cannot find each other; give flux run -o pmi=simple for MPICH, -o pmi=pmix "
           "for Open MPI 5, -o pmi=cray-pals for Cray MPICH";
  return numbers +
         ": the program uses another MPI than the mpirun that started it; use the mpirun of the "
         "MPI that it was built with";
}

std::string srun_plugin(std::string_view library, std::string_view listed) {
  const auto is = [&](std::string_view name) { return library.find(name) != library.npos; };
  // Slurm's MPI guide; Open MPI 5 knows no PMI but PMIx. MPICH speaks PMI-1 to Slurm's pmi2 plugin,
  // and PMIx only if it was built with it.
  std::vector<std::string_view> wanted{"pmi2", "pmix"};
  if (is("Open MPI") || is("Spectrum MPI")) wanted = {"pmix"};
  if (is("CRAY MPICH")) wanted = {"cray_shasta"};
  bool any = false;
  const auto lists = [&](std::string_view plugin) {
    constexpr std::string_view separators = " \t\n,:";
    for (std::size_t begin = 0;
         (begin = listed.find_first_not_of(separators, begin)) < listed.size();) {
      const auto end = std::min(listed.find_first_of(separators, begin), listed.size());
      const auto word = listed.substr(begin, end - begin);
      any = any || word == "none";  // in every list
      if (word == plugin) return true;
      begin = end;
    }
    return false;
  };
  for (const auto plugin : wanted)
    if (lists(plugin)) return std::string(plugin);
  return any ? "" : std::string(wanted.front());
}

}  // namespace llamesh::comm
