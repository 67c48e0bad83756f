#include "checkpoint/models/base_model.hpp"

#include <bit>
#include <filesystem>
#include <vector>

#include "checkpoint/format/state.hpp"
#include "core/error.hpp"
#include "core/hash.hpp"
#include "core/philox.hpp"

namespace llamesh::checkpoint {
namespace {

/// The finalizer of SplitMix64 (Steele, Lea & Flood 2014): each bit of the key changes half of the
/// result's.
std::uint64_t mixed(std::uint64_t key) {
  key = (key ^ (key >> 30U)) * 0xBF58476D1CE4E5B9U;
  key = (key ^ (key >> 27U)) * 0x94D049BB133111EBU;
  return key ^ (key >> 31U);
}

}  // namespace

std::uint64_t hash_of_elements(const model::Parameter& parameter, const BoxRange& range,
                               std::span<const float> values) {
  const auto name = name_hash(parameter.name);
  std::uint64_t sum = 0;
  for_each_run(
      parameter.shape, range, [&](std::int64_t begin, std::int64_t at, std::int64_t count) {
        const auto* run = values.data() + at;
        for (std::int64_t i = 0; i < count; ++i) {
          const auto element = static_cast<std::uint64_t>(begin + i);
          const auto bits = std::bit_cast<std::uint32_t>(run[i]);
          sum += mixed(name + element * 0x9E3779B97F4A7C15U + (std::uint64_t{bits} << 17U));
        }
      });
  return sum;
}

std::uint64_t hash_of_parameters(const StoredModel& model, const model::ParameterTable& table,
                                 const std::vector<model::ParameterId>& parameters) {
  std::uint64_t hash = 0;
  std::vector<float> values;
  for (const auto id : parameters) {
    const auto whole = Box::whole(table[id].shape);
    for_each_segment(whole.numel(), [&](std::int64_t begin, std::int64_t count) {
      values.resize(static_cast<std::size_t>(count));
      const BoxRange range{whole, begin, count};
      model.read(id, range, values);
      hash += hash_of_elements(table[id], range, values);
    });
  }
  return hash;
}

void check_base(const BaseModel& base, const std::string& path, std::uint64_t hash) {
  validate(
      hash == base.hash,
      "the base model {} has changed: its frozen weights hash to {}, but those that the "
      "checkpoint was trained with to {}; restore it, or continue the run with model.hf set to "
      "a copy of what was in {}",
      path, to_hex(hash), to_hex(base.hash), base.path);
}

void check_base_exists(const std::string& path) {
  std::error_code error;
  validate(std::filesystem::is_directory(path, error),
           "the base model {} is gone, and the checkpoint refers to it for the frozen weights; put "
           "it back, or continue the run with model.hf set to a copy",
           path);
}

}  // namespace llamesh::checkpoint
