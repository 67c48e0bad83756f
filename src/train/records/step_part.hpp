#pragma once

#include <array>
#include <cstdint>

#include "ops/square_units.hpp"
#include "sharding/quantization_squares.hpp"
#include "train/records/pair_means.hpp"

namespace llamesh::train {

/// Times for one axis, in seconds: in its collectives (on CPUs), and with the compute stream
/// waiting for them.
struct AxisSeconds {
  float in_collectives = 0;
  float exposed = 0;
};
/// Ordered like DeviceMesh::all(), which has fewer entries.
using SecondsByAxis = std::array<AxisSeconds, 24>;

/// A rank's measurements of a step.
struct StepSample {
  double seconds = 0;        ///< as StepRecord::seconds
  double own_seconds = 0;    ///< without its waits for others
  double load_per_core = 0;  ///< of this rank's machine, in the last minute; 0: unknown
  std::int64_t in_use = 0;   ///< bytes of memory
  std::int64_t peak = 0;
  std::int64_t on_host = 0;   ///< bytes of host memory, in addition to the device's
  double copies_exposed = 0;  ///< seconds waiting for copies to and from the host
  double joules = 0;          ///< as StepRecord::joules, of this rank's counters; NaN: unknown
  double utilization = 0;     ///< of this rank's device; NaN: unknown
  SecondsByAxis axes = {};
  sharding::QuantizedTraffic quantized = {};  ///< since the previous step
};

/// A rank's part of a step's record, which the ranks exchange: trivially copyable.
struct StepPart {
  double loss = 0;  ///< sum over its tokens or pairs
  PairSums pairs = {};
  // The squares over its gradient shards: in one of these (GradientNorm).
  double squared_norm = 0;
  ops::SquareUnits square_units = {};
  bool broken = false;  ///< a collective was aborted: loss and norm are invalid
  std::int64_t request = 0;
  std::int64_t difference = 0;  ///< ReplayCheck::difference()
  StepSample measured{};
};

}  // namespace llamesh::train
