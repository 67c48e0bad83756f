#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// How the CPU computes products of bf16 matrices. Some CPUs are slower with their bf16
/// instructions than with fp32 ones, conversions included; results differ in their last bits, so
/// the ranks of a job have to choose alike.
namespace llamesh::ops {

enum class Bf16Products : std::uint8_t { native, in_fp32 };

/// "native" and "fp32".
std::string_view name_of(Bf16Products way);

/// Whether the CPU has bf16 instructions that oneDNN may use.
bool has_native_bf16();

/// The way that is taken: the native one where there is one, until use_bf16_products().
Bf16Products bf16_products();
/// Sets the way of all products that come after. `native` needs has_native_bf16().
void use_bf16_products(Bf16Products way);

/// Seconds of a core for one product in either way; infinite where the CPU lacks it.
struct Bf16Seconds {
  double native, in_fp32;

  Bf16Products faster() const {
    return native <= in_fp32 ? Bf16Products::native : Bf16Products::in_fp32;
  }
};
/// The best of several products each, by the time that the thread had on its core: other work
/// there does not count. Measured once, in about 10 ms; then what was measured.
Bf16Seconds measured_bf16_products();

/// Why AMX is not used though the CPU advertises it, in one line; empty where it is used, or not
/// there.
std::string why_no_amx();

}  // namespace llamesh::ops
