#include "ops/cuda/gemm/gemm_table.hpp"

#include "core/error.hpp"
#include "core/json.hpp"

namespace llamesh::ops::cuda {
namespace {

using nlohmann::json;

json to_json(const GemmProblem& problem, const TunedGemm& tuned) {
  return {{"m", problem.m},
          {"n", problem.n},
          {"k", problem.k},
          {"inputs", name_of(problem.inputs)},
          {"output", name_of(problem.output)},
          {"a_transposed", problem.a_transposed},
          {"b_transposed", problem.b_transposed},
          {"a_stride", problem.a_stride},
          {"b_stride", problem.b_stride},
          {"c_stride", problem.c_stride},
          {"a_alignment", problem.a_alignment},
          {"b_alignment", problem.b_alignment},
          {"c_alignment", problem.c_alignment},
          {"accumulates", problem.accumulates},
          {"candidate", tuned.candidate},
          {"best_us", tuned.best_us},
          {"first_us", tuned.first_us}};
}

DType dtype_from(const json& from) {
  const auto name = from.get<std::string>();
  for (const DType dtype : {DType::f32, DType::bf16, DType::e4m3})
    if (name == name_of(dtype)) return dtype;
  fail(ExitCode::bad_input, "there is '{}' where fp32 or bf16 belongs", name);
}

GemmProblem problem_from(const json& row) {
  const auto size = [&](const char* key) { return to_integer(row.at(key), 1); };
  const auto alignment = [&](const char* key) {
    return static_cast<unsigned>(to_integer(row.at(key), 1, 256));
  };
  GemmProblem problem;
  problem.m = size("m");
  problem.n = size("n");
  problem.k = size("k");
  problem.inputs = dtype_from(row.at("inputs"));
  problem.output = dtype_from(row.at("output"));
  problem.a_transposed = row.at("a_transposed").get<bool>();
  problem.b_transposed = row.at("b_transposed").get<bool>();
  problem.a_stride = size("a_stride");
  problem.b_stride = size("b_stride");
  problem.c_stride = size("c_stride");
  problem.a_alignment = alignment("a_alignment");
  problem.b_alignment = alignment("b_alignment");
  problem.c_alignment = alignment("c_alignment");
  problem.accumulates = row.value("accumulates", false);  // older tables lack it
  return problem;
}

TunedGemm tuned_from(const json& row) {
  return {static_cast<int>(to_integer(row.at("candidate"), 0, gemm_candidates - 1)),
          row.at("best_us").get<double>(), row.at("first_us").get<double>()};
}

}  // namespace

std::string to_text(const GemmTable& table, const GemmLibrary& library) {
  json text = {{"gpu", library.gpu}, {"cublaslt", library.cublaslt}, {"products", json::array()}};
  for (const auto& [problem, tuned] : table) text["products"].push_back(to_json(problem, tuned));
  return text.dump(1) + "\n";
}

GemmTable parse_table(std::string_view text, const std::string& name, const GemmLibrary& here) {
  const auto understood = [&](const auto& work) {
    try {
      return work();
    } catch (const std::exception& wrong) {
      fail(ExitCode::bad_input, "{} is not a GEMM table (llamesh bench step --tune-gemms): {}",
           name, wrong.what());
    }
  };
  const json from = understood([&] { return parse_json(text, "its text"); });
  const auto its = understood([&] { return GemmLibrary{from.at("gpu"), from.at("cublaslt")}; });
  validate(its.gpu == here.gpu && its.cublaslt == here.cublaslt,
           "the GEMM table {} was made on {} with cuBLASLt {}, this is {} with {}; make one "
           "here (llamesh bench step --tune-gemms)",
           name, its.gpu, its.cublaslt, here.gpu, here.cublaslt);
  return understood([&] {
    GemmTable table;
    for (const auto& row : from.at("products")) table[problem_from(row)] = tuned_from(row);
    return table;
  });
}

}  // namespace llamesh::ops::cuda
