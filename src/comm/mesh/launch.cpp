#include "comm/mesh/launch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <initializer_list>
#include <optional>
#include <string_view>

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

/// Returns true for srun --mpi=pmi2. It sets the same variables as Hydra, but for its own tasks:
/// under Hydra a task is a proxy that starts a node's ranks.
bool is_pmi2_of_srun(const Environment& environment) {
  const auto same = [&](const char* pmi, const char* slurm) {
    const auto value = number(environment, pmi);
    return value && value == number(environment, slurm);
  };
  return same("PMI_SIZE", "SLURM_STEP_NUM_TASKS") && same("PMI_RANK", "SLURM_PROCID");
}

}  // namespace

Launch detect_launch(const Environment& environment) {
  struct Source {
    const char* ranks;
    const char* rank;
    bool its_own;
  };
  // Open MPI's mpirun, Hydra's mpiexec.
  for (const Source& source : {Source{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", true},
                               Source{"PMI_SIZE", "PMI_RANK", !is_pmi2_of_srun(environment)}})
    if (const auto ranks = number(environment, source.ranks); ranks && source.its_own)
      return {*ranks, source.ranks, number(environment, source.rank).value_or(0), true};
  // srun sets the first for its tasks; the second alone means a shell inside an allocation.
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"})
    if (const auto ranks = number(environment, name)) {
      const bool step = environment("SLURM_STEP_NUM_TASKS") != nullptr;
      // PMI_RANK alone may be left over from another launcher.
      const bool pmi = environment("PMIX_RANK") != nullptr ||
                       (environment("PMI_RANK") != nullptr && environment("PMI_FD") != nullptr);
      return {*ranks, name, step ? number(environment, "SLURM_PROCID").value_or(0) : 0,
              pmi || *ranks <= 1};
    }
  // torchrun sets both. Scripts export WORLD_SIZE alone, with various meanings.
  const auto ranks = number(environment, "WORLD_SIZE"), rank = number(environment, "RANK");
  if (ranks && rank) return {*ranks, "WORLD_SIZE", *rank};
  return {};
}

std::string launch_problem(const Launch& launch, int world_size) {
  if (launch.ranks == 0 || launch.ranks == world_size) return {};
  const auto numbers = fmt::format("{} is {} but MPI sees {} {}", launch.variable, launch.ranks,
                                   world_size, world_size == 1 ? "rank" : "ranks");
  if (launch.variable == "WORLD_SIZE")
    // An unknown MPI launcher may have started ranks in addition to torchrun's variables.
    return world_size > 1 ? ""
                          : numbers +
                                ": torchrun starts processes without MPI; start the ranks with "
                                "mpirun or srun --mpi=pmix";
  if (launch.variable.starts_with("SLURM"))
    return numbers +
           ": the ranks cannot find each other; start them with srun --mpi=pmix (see "
           "srun --mpi=list) or mpirun";
  return numbers +
         ": the program uses another MPI than the mpirun that started it; use the mpirun of the "
         "MPI "
         "that it was built with";
}

}  // namespace llamesh::comm
