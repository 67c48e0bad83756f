#pragma once

#include <cstdint>
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>

namespace llamesh::ops::cpu {

/// What the instruction CPUID returns for one leaf.
struct CpuidLeaf {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

/// The CPUID leaves that report AMX (Intel SDM, volume 2A).
struct AmxLeaves {
  CpuidLeaf features;  ///< 07H.0: EDX has AMX-BF16 in bit 22, AMX-TILE in 24, AMX-INT8 in 25
  CpuidLeaf palettes;  ///< 1DH.0: EAX is the highest palette
  CpuidLeaf palette1;  ///< 1DH.1: bytes of all tiles and of one, bytes a row, tiles, rows
};

/// Whether the CPU advertises AMX, but no tile palette to configure it by, as some virtual machines
/// do. oneDNN's first bf16 product would die there of SIGILL.
bool lacks_tile_palette(const AmxLeaves& leaves);

/// Whether this value of ONEDNN_MAX_CPU_ISA keeps oneDNN from AMX already.
bool excludes_amx(std::string_view max_cpu_isa);

/// The instructions that oneDNN may use, without AMX where its palette is missing. oneDNN takes a
/// limit only before it is first asked for anything, so whoever uses it calls this before.
dnnl::cpu_isa usable_isa();

}  // namespace llamesh::ops::cpu
