#pragma once

#include <map>
#include <string>
#include <utility>

#include "comm/mpi/communicator.hpp"
#include "device/hardware.hpp"
#include "train/setup/run_inputs.hpp"

namespace llamesh::plan {

/// Collector for the kernel rates of training steps.
///
/// A step of the Trainer gives the seconds of each kernel, and the same step on a simulated device
/// its size and amount of work. So each kernel is measured among the others, with the caches as
/// they leave them.
class KernelRates {
 public:
  /// Measures steps of a run on each rank by itself, on all ranks at the same time, for about
  /// `seconds`. `in` has train.threads and random data. Collective.
  void measure(const comm::Communicator& world, const train::Inputs& in, double seconds);

  /// Returns the mean rate over the ranks for each kernel and size. Collective.
  device::RateTables tables(const comm::Communicator& world) const;

 private:
  /// Kernel calls of about the same size.
  struct Sum {
    double seconds = 0;
    double amount = 0;
    double log_size = 0;  ///< sum, weighted by the amount
  };
  std::map<std::pair<std::string, int>, Sum> sums_;  ///< by kernel and the size's power of two
};

}  // namespace llamesh::plan
