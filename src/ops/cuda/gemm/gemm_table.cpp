#include "ops/cuda/gemm/gemm_table.hpp"

#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/file.hpp"
#include "device/device.hpp"

namespace llamesh {
NLOHMANN_JSON_SERIALIZE_ENUM(DType, {{DType::f32, "fp32"}, {DType::bf16, "bf16"}})
}

namespace llamesh::ops::cuda {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(GemmProblem, m, n, k, inputs, output, a_transposed, b_transposed,
                                   a_stride, b_stride, c_stride, a_alignment, b_alignment,
                                   c_alignment)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TunedGemm, candidate, best_us, first_us)

namespace {

std::string version() {
  const auto number = cublasLtGetVersion();
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

}  // namespace

void write_table(const std::filesystem::path& file, const GemmTable& table) {
  nlohmann::json json = {{"gpu", device::description()}, {"cublaslt", version()}};
  for (const auto& [problem, tuned] : table) {
    nlohmann::json row = problem;
    row.update(nlohmann::json(tuned));
    json["products"].push_back(row);
  }
  write_durably(file, json.dump(1) + "\n");
}

GemmTable read_table(const std::filesystem::path& file) {
  const auto json = nlohmann::json::parse(read_file(file, 64 << 20), nullptr,
                                          /*allow_exceptions=*/false);
  GemmTable table;
  try {
    const auto here = device::description(), gpu = json.at("gpu").get<std::string>();
    const auto library = version(), its = json.at("cublaslt").get<std::string>();
    validate(gpu == here && its == library,
             "the table of GEMMs {} was made on {} with cuBLASLt {}, this is {} with {}; make one "
             "here (llamesh bench step --tune-gemms)",
             file.string(), gpu, its, here, library);
    for (const auto& row : json.at("products")) {
      const auto tuned = row.get<TunedGemm>();
      validate(0 <= tuned.candidate && tuned.candidate < gemm_candidates,
               "the table of GEMMs {} has candidate {}, there are 0 to {}", file.string(),
               tuned.candidate, gemm_candidates - 1);
      table[row.get<GemmProblem>()] = tuned;
    }
  } catch (const nlohmann::json::exception& wrong) {
    fail(ExitCode::bad_input, "{} is no table of GEMMs (llamesh bench step --tune-gemms): {}",
         file.string(), wrong.what());
  }
  return table;
}

}  // namespace llamesh::ops::cuda
