#include "ops/gemm_algorithms.hpp"

#ifdef LLAMESH_HAS_CUDA
#include "device/device.hpp"
#include "ops/cuda/gemm/gemm.hpp"
#include "ops/cuda/gemm/gemm_table.hpp"

namespace llamesh::ops {
namespace {

bool on_gpu() {
  return device::kind() == device::Kind::cuda;
}

}  // namespace

void use_gemm_sm_count_target(int count) {
  if (on_gpu()) cuda::use_gemm_sm_count_target(count);
}

bool multiplies_fp8() {
  return on_gpu() && cuda::multiplies_fp8();
}

void emulate_fp8(bool emulate) {
  if (on_gpu()) cuda::emulate_fp8(emulate);
}

int gemm_candidates() {
  return on_gpu() ? cuda::gemm_candidates : 1;
}

void use_gemm_candidate(int candidate) {
  if (on_gpu()) cuda::use_gemm_candidate(candidate);
}

void tune_gemms() {
  if (on_gpu()) cuda::tune_gemms();
}

std::string write_gemm_table(const std::filesystem::path& file) {
  return on_gpu() ? cuda::write_gemm_table(file) : "";
}

void use_gemm_table(const std::filesystem::path& file) {
  if (on_gpu()) cuda::use_gemm_table(file);
}

}  // namespace llamesh::ops

#else

namespace llamesh::ops {

void use_gemm_sm_count_target(int /*count*/) {}
bool multiplies_fp8() {
  return false;
}
void emulate_fp8(bool /*emulate*/) {}
int gemm_candidates() {
  return 1;
}
void use_gemm_candidate(int /*candidate*/) {}
void tune_gemms() {}
std::string write_gemm_table(const std::filesystem::path& /*file*/) {
  return {};
}
void use_gemm_table(const std::filesystem::path& /*file*/) {}

}  // namespace llamesh::ops

#endif
