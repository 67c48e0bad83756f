#include "ops/cpu/instruction_set.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <string>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "ops/bf16_products.hpp"
#include "ops/ops.hpp"

namespace llamesh::ops::cpu {
namespace {

constexpr std::uint32_t amx_bits = 1U << 22U | 1U << 24U | 1U << 25U;

/// Returns zeros if the CPU has no such leaf.
CpuidLeaf leaf_of_this_cpu([[maybe_unused]] std::uint32_t leaf,
                           [[maybe_unused]] std::uint32_t subleaf) {
  CpuidLeaf result;
#if defined(__x86_64__)
  __get_cpuid_count(leaf, subleaf, &result.eax, &result.ebx, &result.ecx, &result.edx);
#endif
  return result;
}

AmxLeaves amx_leaves_of_this_cpu() {
  // For tests: mimics a CPU that advertises AMX but hides the palette.
  if (std::getenv("LLAMESH_HIDE_AMX_PALETTE") != nullptr)
    return {.features = {.edx = amx_bits}, .palettes = {}, .palette1 = {}};
  return {.features = leaf_of_this_cpu(0x07, 0),
          .palettes = leaf_of_this_cpu(0x1D, 0),
          .palette1 = leaf_of_this_cpu(0x1D, 1)};
}

/// Returns the user's oneDNN limit, from either environment variable.
std::string max_cpu_isa_of_user() {
  for (const char* name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"})
    if (const char* value = std::getenv(name)) return value;
  return "";
}

struct Usable {
  dnnl::cpu_isa isa;
  bool without_amx;  ///< because its palette is missing
};

const Usable& usable() {
  static const Usable result = [] {
    const bool limited =
        lacks_tile_palette(amx_leaves_of_this_cpu()) && !excludes_amx(max_cpu_isa_of_user());
    if (limited) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
    return Usable{dnnl::get_effective_cpu_isa(), limited};
  }();
  return result;
}

}  // namespace

bool lacks_tile_palette(const AmxLeaves& leaves) {
  if ((leaves.features.edx & amx_bits) == 0) return false;
  const auto& p = leaves.palette1;
  const auto low = [](std::uint32_t word) { return word & 0xFFFFU; };
  const auto high = [](std::uint32_t word) { return word >> 16U; };
  const bool described =
      low(p.eax) > 0 && high(p.eax) > 0 && low(p.ebx) > 0 && high(p.ebx) > 0 && low(p.ecx) > 0;
  return leaves.palettes.eax == 0 || !described;
}

bool excludes_amx(std::string_view max_cpu_isa) {
  // oneDNN matches names case-insensitively and ignores unknown ones.
  constexpr std::array lower{"SSE41",
                             "AVX",
                             "AVX2",
                             "AVX2_VNNI",
                             "AVX512_MIC",
                             "AVX512_MIC_4OPS",
                             "AVX512_CORE",
                             "AVX512_CORE_VNNI",
                             "AVX512_CORE_BF16"};
  std::string name(max_cpu_isa);
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::toupper(c); });
  return std::ranges::find(lower, name) != lower.end();
}

dnnl::cpu_isa usable_isa() {
  return usable().isa;
}

}  // namespace llamesh::ops::cpu

namespace llamesh::ops {

std::string why_no_amx() {
  if (!cpu::usable().without_amx) return "";
  return "AMX is advertised without its tile palette (CPUID leaf 1DH is zero)";
}

const char* instruction_set() {
  switch (cpu::usable_isa()) {
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx:
      return "avx";
    default:
      return "sse41";
  }
}

}  // namespace llamesh::ops
