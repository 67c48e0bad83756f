#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// CPU method for products of bf16 matrices. Some CPUs are slower with their bf16 instructions than
/// with fp32 ones, conversions included. The two methods differ in the last bits, so all ranks in a
/// job must choose the same one.
namespace llamesh::ops {

enum class Bf16Products : std::uint8_t { native, in_fp32 };

/// Returns "native" or "fp32".
std::string_view name_of(Bf16Products way);

/// Returns true if the CPU has bf16 instructions that oneDNN may use.
bool has_native_bf16();

/// Returns the current method. Until use_bf16_products() is called this is `native` if the CPU has
/// it.
Bf16Products bf16_products();
/// Sets the method for all later products. `native` requires has_native_bf16().
void use_bf16_products(Bf16Products way);

/// Core seconds for one product by each method; infinite if the CPU lacks it.
struct Bf16Seconds {
  double native, in_fp32;

  Bf16Products faster() const {
    return native <= in_fp32 ? Bf16Products::native : Bf16Products::in_fp32;
  }
};
/// Times several products by each method and returns each method's best time. Uses thread CPU time,
/// so that other work on the core does not count. Measures once (about 10 ms) and then returns the
/// stored result.
Bf16Seconds measured_bf16_products();

/// Returns one line that says why AMX is not used although the CPU advertises it. Empty if AMX is
/// used or absent.
std::string why_no_amx();

}  // namespace llamesh::ops
