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
  /// Returns the values and scales that the device holds now.
  std::pair<std::vector<std::byte>, std::vector<std::byte>> downloaded() {
    std::vector<std::byte> values(values_.size() + values_.size() % 2), scales(scales_.size());
    device_values_.download(device_stream(), values);
    device_scales_.download(device_stream(), scales);
    values.resize(values_.size());
    return {values, scales};
  }
  void expect_equal(const char* what) {
    const auto [values, scales] = downloaded();
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
const Sizes all_sizes[] = {{1, 1, 1},    {1, 5, 70},   {1, 130, 64},  {2, 67, 129},
                           {1, 3, 4096}, {2, 144, 72}, {1, 400, 136}, {1, 48, 200}};

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
      ops::requantize_columns(host_stream(), columns.host(), rows.host());
      ops::cuda::requantize_columns(device_stream(), columns.device(), rows.device());
      columns.expect_equal("columns of codes");
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

/// Bytes on both host and device.
class TestBytes {
 public:
  explicit TestBytes(std::int64_t size)
      : host_(static_cast<std::size_t>(size)), device_(static_cast<std::size_t>(size)) {}
  std::byte* host() { return host_.data(); }
  std::byte* device() { return static_cast<std::byte*>(device_.data()); }
  void upload() { device_.upload(device_stream(), host_); }
  void expect_equal(const char* what) {
    std::vector<std::byte> from_device(host_.size());
    device_.download(device_stream(), from_device);
    EXPECT_TRUE(from_device == host_) << what << ", seed " << seed;
  }

 private:
  std::vector<std::byte> host_;
  DeviceMemory device_;
};

TEST_P(CudaFp8, DividesRowsAmongRanks) {
  constexpr std::int64_t ranks = 3;
  for (const auto& [rows, cols, part] : {std::tuple{7, 33, 80}, {6, 64, 128}, {3, 1000, 1024}}) {
    SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " by " << part);
    const std::int64_t numel = std::int64_t{rows} * cols;
    TestMatrix x(dtype(), 1, numel, {}, 3.0);
    TestBytes maxima(ranks * rows * 4), first_rows(16), scales(std::int64_t{rows} * 4);
    TestBytes codes(numel);
    const auto run = [&](std::byte* own_scales, std::byte* own_codes, std::int64_t first) {
      return ops::Fp8Run{.first = first,
                         .cols = cols,
                         .scales = Tensor(own_scales, DType::f32, {rows}),
                         .values = Tensor(own_codes + first, DType::e4m3,
                                          {std::min<std::int64_t>(part, numel - first)})};
    };
    const auto host = [&](std::int64_t first) { return run(scales.host(), codes.host(), first); };
    const auto device = [&](std::int64_t first) {
      return run(scales.device(), codes.device(), first);
    };
    const auto for_each_rank = [&](auto visit) {
      for (std::int64_t rank = 0; rank < ranks && rank * part < numel; ++rank)
        visit(rank, rank * part, std::min<std::int64_t>(part, numel - rank * part));
    };
    maxima.upload();
    codes.upload();
    for_each_rank([&](std::int64_t rank, std::int64_t first, std::int64_t count) {
      const auto row = first / cols, touched = (first + count - 1) / cols - row + 1;
      reinterpret_cast<std::int32_t*>(first_rows.host())[rank] = static_cast<std::int32_t>(row);
      const auto mine = [&](std::byte* all) {
        return Tensor(all + rank * rows * 4, DType::f32, {touched});
      };
      ops::row_maxima(host_stream(), mine(maxima.host()), x.host().slice(first, count),
                      host(first));
      ops::cuda::row_maxima(device_stream(), mine(maxima.device()), x.device().slice(first, count),
                            device(first));
    });
    maxima.expect_equal("maxima");
    first_rows.upload();
    ops::row_scales(host_stream(), Tensor(scales.host(), DType::f32, {rows}),
                    Tensor(maxima.host(), DType::f32, {ranks, rows}),
                    Tensor(first_rows.host(), DType::i32, {ranks}));
    ops::cuda::row_scales(device_stream(), Tensor(scales.device(), DType::f32, {rows}),
                          Tensor(maxima.device(), DType::f32, {ranks, rows}),
                          Tensor(first_rows.device(), DType::i32, {ranks}));
    scales.expect_equal("scales");
    for_each_rank([&](std::int64_t /*rank*/, std::int64_t first, std::int64_t count) {
      ops::quantize_run(host_stream(), host(first), x.host().slice(first, count));
      ops::cuda::quantize_run(device_stream(), device(first), x.device().slice(first, count));
    });
    codes.expect_equal("codes");
  }
}

TEST_P(CudaFp8, QuantizesWhatAnActivationWrites) {
  using enum ops::Activation;
  for (const auto activation : {swiglu, clamped_swiglu, geglu, gelu, squared_relu})
    for (const auto& [rows, cols] : {std::pair{3, 16}, {2, 48}, {2, 4112}, {5, 40}, {2, 7}}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols);
      TestMatrix x(dtype(), rows, ops::inputs_of(activation) * cols), y(dtype(), rows, cols);
      TestMatrix in_one(dtype(), rows, cols);
      TestFp8 expected(1, rows, cols), q(1, rows, cols);
      ops::cuda::activate(device_stream(), y.device(), x.device(), activation);
      ops::cuda::quantize_rows(device_stream(), expected.device(), y.device());
      ops::cuda::activate_and_quantize(device_stream(), in_one.device(), q.device(), x.device(),
                                       activation);
      EXPECT_TRUE(in_one.downloaded() == y.downloaded());
      EXPECT_TRUE(q.downloaded() == expected.downloaded());
    }
}

TEST_P(CudaFp8, QuantizesWhatANormWrites) {
  for (const bool has_delta : {false, true})
    for (const auto& [rows, cols] : {std::pair{3, 16}, {2, 48}, {3, 4112}, {2, 40}, {2, 7}}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << cols << ", delta " << has_delta);
      TestMatrix x(dtype(), rows, cols), delta(dtype(), rows, cols), w(dtype(), 1, cols);
      TestMatrix sum(dtype(), rows, cols), y(dtype(), rows, cols), inverse(DType::f32, 1, rows);
      TestFp8 expected(1, rows, cols), q(1, rows, cols);
      const ops::RowNormCall call{.x = x.device(),
                                  .delta = has_delta ? delta.device() : Tensor(),
                                  .sum = has_delta ? sum.device() : Tensor(),
                                  .w = w.device().reshape({cols}),
                                  .eps = 1e-5F,
                                  .y = y.device(),
                                  .inverse = inverse.device().reshape({rows})};
      ops::cuda::rms_norm(device_stream(), call);
      ops::cuda::quantize_rows(device_stream(), expected.device(), y.device());
      const auto norm = y.downloaded();
      ops::cuda::rms_norm_and_quantize(device_stream(), call, q.device());
      EXPECT_TRUE(y.downloaded() == norm);
      EXPECT_TRUE(q.downloaded() == expected.downloaded());
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
