#pragma once

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>

namespace llamesh::ops::cpu {

/// CPUID result for one leaf.
struct CpuidLeaf {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// CPUID leaves that report AMX (Intel SDM, volume 2A).
struct AmxLeaves {
  CpuidLeaf features;  ///< 07H.0: EDX has AMX-BF16 in bit 22, AMX-TILE in bit 24, AMX-INT8 in bit
                       ///< 25
  CpuidLeaf palettes;  ///< 1DH.0: EAX is the highest palette
  CpuidLeaf palette1;  ///< 1DH.1: total tile bytes, bytes per tile, bytes per row, tiles, rows
};

/// Returns true if the CPU advertises AMX without a tile palette to configure it, as some virtual
/// machines do. oneDNN's first bf16 product would then die with SIGILL.
bool lacks_tile_palette(const AmxLeaves& leaves);

/// Returns true if this ONEDNN_MAX_CPU_ISA value already excludes AMX.
bool excludes_amx(std::string_view max_cpu_isa);

/// Returns the instruction set that oneDNN may use, without AMX if its palette is missing. oneDNN
/// accepts a limit only before its first use, so call this before any other oneDNN function.
dnnl::cpu_isa usable_isa();

}  // namespace llamesh::ops::cpu
