#include <array>
#include <limits>

#include "test_matrix.hpp"

namespace llamesh::test {
namespace {

using ops::CodeFormat;

class CudaBlockCodes : public EachDType {};
INSTANTIATE_TEST_SUITE_P(Types, CudaBlockCodes, ::testing::Values(DType::f32, DType::bf16),
                         dtype_name);

constexpr std::array all_formats{CodeFormat::int8, CodeFormat::int4, CodeFormat::int8_by_64,
                                 CodeFormat::nf4};

/// Numbers as codes on both host and device.
class TestCodes {
 public:
  TestCodes(std::int64_t parts, std::int64_t part_numel, CodeFormat format)
      : parts_(parts),
        part_numel_(part_numel),
        format_(format),
        bytes_(static_cast<std::size_t>(parts * ops::BlockCodes::part_bytes(part_numel, format))),
        device_(bytes_.size()) {
    device_.upload(device_stream(), bytes_);
  }
  ops::BlockCodes host() { return at(bytes_.data()); }
  ops::BlockCodes device() { return at(device_.data()); }
  void expect_equal(const char* what) {
    std::vector<std::byte> bytes(bytes_.size());
    device_.download(device_stream(), bytes);
    EXPECT_TRUE(bytes == bytes_) << what << ", seed " << seed;
  }

 private:
  ops::BlockCodes at(void* data) const {
    return {.bytes = Tensor(data, DType::i8,
                            {parts_, ops::BlockCodes::part_bytes(part_numel_, format_)}),
            .part_numel = part_numel_,
            .format = format_};
  }
  std::int64_t parts_, part_numel_;
  CodeFormat format_;
  std::vector<std::byte> bytes_;
  DeviceMemory device_;
};

TEST_P(CudaBlockCodes, AreTheSameBits) {
  for (const std::int64_t part_numel : {1, 7, 64, 256, 257, 1000, 2048})
    for (const auto format : all_formats)
      for (const double spread : {1e-31, 1.0, 1e30})
        for (const std::int64_t offset : {0, 1}) {
          SCOPED_TRACE(::testing::Message()
                       << part_numel << ", " << bits_of(format) << " bits, " << spread);
          const std::int64_t parts = 3, numel = parts * part_numel - part_numel / 3;
          TestMatrix x(dtype(), 1, numel, {0, offset}, spread);
          TestCodes codes(parts, part_numel, format);
          ops::quantize_blocks(host_stream(), codes.host(), x.host(), {});
          ops::cuda::quantize_blocks(device_stream(), codes.device(), x.device(), {});
          codes.expect_equal("codes");
          TestMatrix y(dtype(), 1, numel, {0, offset});
          ops::dequantize_blocks(host_stream(), y.host(), codes.host());
          ops::cuda::dequantize_blocks(device_stream(), y.device(), codes.device());
          y.expect_equal(0, "numbers");
        }
}

TEST_P(CudaBlockCodes, AddTheirSquares) {
  // More blocks than rows of sums, and fewer.
  const auto many = ops::BlockCodes::square_sums * ops::BlockCodes::block + 3000;
  for (const std::int64_t numel : {std::int64_t{70}, std::int64_t{100000}, many})
    for (const auto format : all_formats) {
      if (numel == many && format != CodeFormat::int4) continue;
      TestMatrix x(dtype(), 1, numel);
      TestMatrix squares(DType::f32, ops::BlockCodes::square_sums, 2, {}, 0);
      TestCodes codes(1, numel, format);
      ops::quantize_blocks(host_stream(), codes.host(), x.host(), squares.host());
      ops::cuda::quantize_blocks(device_stream(), codes.device(), x.device(), squares.device());
      const auto device = squares.downloaded();
      for (const std::int64_t column : {0, 1}) {
        double here = 0, there = 0;
        for (std::int64_t row = 0; row < ops::BlockCodes::square_sums; ++row) {
          here += squares.get(row, column);
          there += squares.read(device, row, column);
        }
        EXPECT_NEAR(there, here, 1e-5 * here) << column << " of " << numel;
      }
    }
}

TEST(CudaBlockCodesSum, AddsTheParts) {
  for (const std::int64_t part_numel : {1, 70, 256, 1000})
    for (const auto format : {CodeFormat::int8, CodeFormat::int4})
      for (const auto accumulate : {Accumulate::no, Accumulate::yes})
        for (const std::int64_t offset : {0, 1}) {
          TestMatrix x(DType::f32, 5, part_numel), sum(DType::f32, 1, part_numel, {0, offset});
          TestCodes codes(5, part_numel, format);
          ops::quantize_blocks(host_stream(), codes.host(), x.host(), {});
          ops::cuda::quantize_blocks(device_stream(), codes.device(), x.device(), {});
          ops::sum_block_parts(host_stream(), sum.host(), codes.host(), accumulate);
          ops::cuda::sum_block_parts(device_stream(), sum.device(), codes.device(), accumulate);
          sum.expect_equal(1e-6, "sum");
        }
}

TEST_P(CudaBlockCodes, NumbersThatAreNotFiniteMakeNan) {
  for (const auto format : {CodeFormat::int8, CodeFormat::int4})
    for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
      TestMatrix x(dtype(), 1, 600);
      x.set(0, 300, bad);
      TestCodes codes(1, 600, format);
      ops::quantize_blocks(host_stream(), codes.host(), x.host(), {});
      ops::cuda::quantize_blocks(device_stream(), codes.device(), x.device(), {});
      codes.expect_equal("codes");
    }
}

}  // namespace
}  // namespace llamesh::test
