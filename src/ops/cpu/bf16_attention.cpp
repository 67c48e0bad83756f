#include "ops/cpu/bf16_attention.hpp"

#include <sys/syscall.h>
#include <unistd.h>
#ifdef __AMX_BF16__
#include <immintrin.h>
#endif

#include "ops/bf16_products.hpp"
#include "ops/cpu/instruction_set.hpp"

namespace llamesh::ops::cpu {
namespace {

#ifdef __AMX_BF16__
/// Asks Linux for the tile registers, which a process has only on request (arch_prctl(2)).
bool may_use_tiles() {
  constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool may = usable_isa() == dnnl::cpu_isa::avx512_core_amx &&
                          syscall(SYS_arch_prctl, request, tile_data) == 0;
  return may;
}
#endif

}  // namespace

Bf16Attention::By Bf16Attention::chosen() {
#ifdef LLAMESH_BF16_ATTENTION
  if (bf16_products() == Bf16Products::in_fp32) return By::none;
#ifdef __AMX_BF16__
  if (may_use_tiles()) return By::tiles;
#endif
  return By::pairs;
#else
  return By::none;
#endif
}

TileRegisters::TileRegisters(Bf16Attention::By by) : in_use_(by == Bf16Attention::By::tiles) {
#ifdef __AMX_BF16__
  if (!in_use_) return;
  struct alignas(64) Palette {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  } palette;
  for (int i = 0; i < 5; ++i) {
    palette.row_bytes[i] = 64;
    palette.rows[i] = 16;
  }
  // g++'s _tile_loadconfig() does not say that it reads all of it.
  asm volatile("ldtilecfg %0" : : "m"(palette));
#endif
}

TileRegisters::~TileRegisters() {
#ifdef __AMX_BF16__
  if (in_use_) _tile_release();
#endif
}

}  // namespace llamesh::ops::cpu
