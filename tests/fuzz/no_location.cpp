// Replaces checkpoint/location.cpp, which needs HDF5 and MPI to look into checkpoints: here every
// folder is a Hugging Face folder.
#include "checkpoint/location.hpp"

namespace llamesh::checkpoint {

Location locate(const std::string& name) {
  return {PathKind::hf_folder, without_hf_prefix(name)};
}

std::string without_hf_prefix(const std::string& name) {
  return name.starts_with("hf:") ? name.substr(3) : name;
}

}  // namespace llamesh::checkpoint
