#include "train/engine/kernel_choice.hpp"

#include <algorithm>

#include "comm/mpi/exchange.hpp"
#include "core/error.hpp"
#include "core/log.hpp"
#include "device/device.hpp"
#include "ops/arithmetic.hpp"
#include "ops/gemm_algorithms.hpp"
#include "ops/ops.hpp"

namespace llamesh::train {
namespace {

using ops::Bf16Products;

bool has_a_choice(DType dtype) {
  return dtype == DType::bf16 && device::kind() == device::Kind::cpu;
}

}  // namespace

Bf16Products agreed_bf16_products(const comm::Communicator& world, const ops::Bf16Seconds& mine) {
  return ops::Bf16Seconds{.native = world.sum(mine.native), .in_fp32 = world.sum(mine.in_fp32)}
      .faster();
}

void choose_bf16_products(const comm::Communicator& world, DType dtype, Reproducible reproducible) {
  if (!has_a_choice(dtype)) return;
  const auto reasons = world.all_gather(ops::why_no_amx());
  const auto with_amx = std::ranges::count(reasons, "");
  if (with_amx < std::ssize(reasons))
    spdlog::info("{}: {} of {} ranks compute without AMX", std::ranges::max(reasons),
                 std::ssize(reasons) - with_amx, reasons.size());
  if (reproducible == Reproducible::mesh) {
    const bool all_have = world.min(std::int64_t{ops::has_native_bf16()}) > 0;
    ops::use_bf16_products(all_have ? Bf16Products::native : Bf16Products::in_fp32);
    spdlog::info("bf16 matmuls: {}, as train.reproducible asks", name_of(ops::bf16_products()));
    return;
  }
  const auto mine = ops::measured_bf16_products();
  ops::use_bf16_products(agreed_bf16_products(world, mine));
  if (!ops::has_native_bf16()) return;
  spdlog::info("bf16 matmuls: {}; {} takes {:.2f} x the time of fp32",
               name_of(ops::bf16_products()), ops::instruction_set(), mine.native / mine.in_fp32);
}

std::string recorded_bf16_products(DType dtype) {
  return has_a_choice(dtype) ? std::string(name_of(ops::bf16_products())) : "";
}

bool keep_bf16_products(const comm::Communicator& world, DType dtype, const std::string& recorded) {
  if (!has_a_choice(dtype) || recorded.empty() || recorded == recorded_bf16_products(dtype))
    return false;
  const auto way =
      recorded == name_of(Bf16Products::native) ? Bf16Products::native : Bf16Products::in_fp32;
  if (way == Bf16Products::native && world.min(std::int64_t{ops::has_native_bf16()}) == 0) {
    if (world.rank() == 0)
      spdlog::warn(
          "the checkpoint's run used the CPU's bf16 instructions, which not every rank has here: "
          "the run continues in fp32, and its results differ in their last bits");
    return false;
  }
  ops::use_bf16_products(way);
  spdlog::info("bf16 matmuls: {}, as in the checkpoint's run", recorded);
  return true;
}

void use_linear_precision(const comm::Communicator& world,
                          const sharding::PrecisionOptions& precision) {
  using model::LinearPrecision;
  if (precision.linear == LinearPrecision::same) return;
  const bool on_gpu = device::kind() == device::Kind::cuda;
  ops::emulate_fp8(precision.linear == LinearPrecision::fp8_emulated);
  const bool emulates = !ops::multiplies_fp8();
  comm::agree(world, [&] {
    if (!on_gpu || precision.linear == LinearPrecision::fp8_emulated) return;
    validate(!emulates,
             "precision.linear is fp8, for which {} has no units (Hopper is the first that has): "
             "use fp8_emulated, which computes with the same numbers more slowly, or same",
             device::description());
    validate(precision.parameters == DType::bf16,
             "precision.linear is fp8, which GPUs multiply for bf16 parameters, but "
             "precision.parameters is fp32; use bf16, or precision.linear=fp8_emulated");
  });
  if (emulates)
    spdlog::info("FP8 matmuls: emulated, the rounded numbers are multiplied in {}",
                 name_of(precision.parameters));
}

void check_arithmetic(const comm::Communicator& world) {
  const auto here = ops::arithmetic();
  const auto of_rank_0 = world.broadcast(here);
  comm::agree(world, [&] {
    validate(here == of_rank_0,
             "train.reproducible is mesh, and this rank computes by {}, rank 0 by {}: use nodes of "
             "one kind, or train.reproducible=launch",
             here, of_rank_0);
  });
}

void check_attention(const comm::Communicator& world, const std::string& saved) {
  check_attention(world, saved, ops::used_attention());
}

void check_attention(const comm::Communicator& world, const std::string& saved,
                     const std::string& used) {
  const auto of_rank_0 = comm::on_rank_0(world, [&] { return used; });
  comm::agree(world, [&] {
    validate(
        used == of_rank_0,
        "this rank computes attention by {}, rank 0 by {}: install the same cuDNN on all nodes "
        "and use one type of GPU, or set LLAMESH_ATTENTION=builtin",
        used, of_rank_0);
  });
  if (world.rank() == 0 && !saved.empty() && !used.empty() && saved != used)
    spdlog::warn(
        "attention is computed by {}, in the checkpoint's steps it was by {}: this run is not "
        "bitwise the one that would have gone on there (LLAMESH_ATTENTION selects it)",
        used, saved);
}

}  // namespace llamesh::train
