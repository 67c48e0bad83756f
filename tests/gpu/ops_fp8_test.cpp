#include <limits>

#include "test_matrix.hpp"
#ifdef LLAMESH_CUDA_EMULATED
#include "emulator.hpp"
#endif

namespace llamesh::test {
namespace {

class CudaFp8 : public EachDType {
#ifdef LLAMESH_CUDA_EMULATED
  void SetUp() override {
    emulator::RaceDetector::piece_shift = 0;
  }
  void TearDown() override {
    emulator::RaceDetector::piece_shift = 1;
  }
#endif
};
INSTANTIATE_TEST_SUITE_P(Types, CudaFp8, ::testing::Values(DType::f32, DType::bf16), dtype_name);

/// An FP8 matrix on both host and device.
class TestFp8 {
 public:
  TestFp8(std::int64_t matrices, std::int64_t rows, std::int64_t cols)
      : shape_{matrices, rows, cols},
        values_(static_cast<std::size_t>(matrices * rows * cols)),
        scales_(static_cast<std::size_t>(matrices * rows * 4)),
        device_values_(values_.size()),
        device_scales_(scales_.size()) {}
  ops::Fp8Matrix host() { return matrix(values_.data(), scales_.data()); }
  ops::Fp8Matrix device() { return matrix(device_values_.data(), device_scales_.data()); }
  void expect_equal(const char* what) {
    std::vector<std::byte> values(values_.size() + values_.size() % 2), scales(scales_.size());
    device_values_.download(device_stream(), values);
    device_scales_.download(device_stream(), scales);
    values.resize(values_.size());
    EXPECT_TRUE(values == values_) << what << ", seed " << seed;
    EXPECT_TRUE(scales == scales_) << what << ": scales, seed " << seed;
  }

 private:
  ops::Fp8Matrix matrix(void* values, void* scales) const {
    const auto [matrices, rows, cols] = shape_;
    return {.values = Tensor(values, DType::e4m3, {matrices, rows, cols}),
            .scales = Tensor(scales, DType::f32, {matrices * rows})};
  }
  struct {
    std::int64_t matrices, rows, cols;
  } shape_;
  std::vector<std::byte> values_, scales_;
  DeviceMemory device_values_, device_scales_;
};

struct Sizes {
  std::int64_t matrices, rows, cols;
};
const Sizes all_sizes[] = {{1, 1, 1}, {1, 5, 70}, {1, 130, 64}, {2, 67, 129}, {1, 3, 4096}};

Tensor stacked(const Tensor& x, const Sizes& s) {
  return x.reshape({s.matrices, s.rows, s.cols});
}

TEST_P(CudaFp8, QuantizesAndBackTheSameBits) {
  for (const auto& s : all_sizes)
    for (const double spread : {1e-13, 1.0, 1e5}) {
      SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.cols << ", " << spread);
      TestMatrix x(dtype(), s.matrices * s.rows, s.cols, {}, spread);
      TestFp8 rows(s.matrices, s.rows, s.cols), columns(s.matrices, s.cols, s.rows);
      ops::quantize_rows(host_stream(), rows.host(), x.host());
      ops::cuda::quantize_rows(device_stream(), rows.device(), x.device());
      rows.expect_equal("rows");
      ops::quantize_columns(host_stream(), columns.host(), stacked(x.host(), s));
      ops::cuda::quantize_columns(device_stream(), columns.device(), stacked(x.device(), s));
      columns.expect_equal("columns");
      TestMatrix y(dtype(), s.matrices * s.rows, s.cols);
      ops::dequantize_rows(host_stream(), y.host(), rows.host());
      ops::cuda::dequantize_rows(device_stream(), y.device(), rows.device());
      y.expect_equal(0, "numbers");
    }
}

TEST_P(CudaFp8, QuantizesRowsThatAreApart) {
  for (const std::int64_t gap : {3, 8}) {
    TestMatrix x(dtype(), 9, 40, {gap, 0});
    TestFp8 rows(1, 9, 40);
    ops::quantize_rows(host_stream(), rows.host(), x.host());
    ops::cuda::quantize_rows(device_stream(), rows.device(), x.device());
    rows.expect_equal("rows");
  }
}

TEST_P(CudaFp8, NumbersThatAreNotFiniteMakeNan) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    TestMatrix x(dtype(), 4, 24);
    x.set(2, 7, bad);
    TestFp8 rows(1, 4, 24), columns(1, 24, 4);
    ops::quantize_rows(host_stream(), rows.host(), x.host());
    ops::cuda::quantize_rows(device_stream(), rows.device(), x.device());
    rows.expect_equal("rows");
    ops::quantize_columns(host_stream(), columns.host(), x.host());
    ops::cuda::quantize_columns(device_stream(), columns.device(), x.device());
    columns.expect_equal("columns");
  }
}

}  // namespace
}  // namespace llamesh::test
