#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/manifest.hpp"
#include "checkpoint/models/stored_model.hpp"
#include "core/box.hpp"
#include "model/description/parameters.hpp"

/// The base model of a checkpoint with frozen weights (checkpoint::BaseModel): proof that a folder
/// still holds the weights that training started from.
namespace llamesh::checkpoint {

/// Returns the hash of a range of a parameter's values: the sum over the elements of a hash of
/// name, position and bits. So the hashes of ranges that cover a parameter once add up to the same
/// number however ranks divide it.
std::uint64_t hash_of_elements(const model::Parameter& parameter, const BoxRange& range,
                               std::span<const float> values);

/// Returns the sum of hash_of_elements() over whole parameters. Runs on one process.
std::uint64_t hash_of_parameters(const StoredModel& model, const model::ParameterTable& table,
                                 const std::vector<model::ParameterId>& parameters);

/// Throws a user error unless the weights in the folder `path` have the base model's hash.
void check_base(const BaseModel& base, const std::string& path, std::uint64_t hash);

/// Throws a user error unless `path`, a base model's or its copy's, is a folder.
void check_base_exists(const std::string& path);

}  // namespace llamesh::checkpoint
