#include "data/foreign_data.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>

#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh::data {
namespace {

namespace fs = std::filesystem;

/// Returns the advice to make JSON lines of the data in `source`: `loaded` is the expression that
/// loads them.
std::string make_json_lines(std::string_view loaded, const std::string& source,
                            const std::string& target) {
  return fmt::format(
      "make JSON lines of it (pip install datasets): python3 -c 'import sys, datasets; "
      "datasets.{}.to_json(sys.argv[2])' {} {}",
      loaded, shell_word(source), shell_word(target + ".jsonl"));
}

bool may_be_hub_name(std::string_view name) {
  const auto is_word = [](std::string_view word) {
    return !word.empty() && word.front() != '.' && std::ranges::all_of(word, [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
  };
  const auto slash = name.find('/');
  return slash != name.npos && is_word(name.substr(0, slash)) && is_word(name.substr(slash + 1));
}

}  // namespace

std::string advice_on_table(const std::string& path, std::string_view bytes) {
  const auto stem = fs::path(path).replace_extension().string();
  if (bytes.starts_with("PAR1"))
    return "it is a Parquet file; " +
           make_json_lines("Dataset.from_parquet(sys.argv[1])", path, stem);
  if (bytes.starts_with("ARROW1") || path.ends_with(".arrow"))
    return "it is an Arrow file; " + make_json_lines("Dataset.from_file(sys.argv[1])", path, stem);
  return "";
}

void refuse_saved_dataset(const std::string& folder) {
  std::error_code ignored;
  const fs::path path(folder);
  const auto refuse = [&](const char* what, std::string_view loaded) {
    const auto name = fs::weakly_canonical(path, ignored).filename().string();
    fail(ExitCode::bad_input, "the folder '{}' is {} saved by Hugging Face's datasets; {}", folder,
         what, make_json_lines(loaded, folder, name));
  };
  if (fs::exists(path / "dataset_dict.json", ignored))
    refuse("several datasets", R"(load_from_disk(sys.argv[1])["train"])");
  if (fs::exists(path / "dataset_info.json", ignored) && fs::exists(path / "state.json", ignored))
    refuse("a dataset", "load_from_disk(sys.argv[1])");
}

void refuse_hub_name(const std::string& name) {
  std::error_code ignored;
  if (!may_be_hub_name(name) || fs::exists(fs::path(name).parent_path(), ignored)) return;
  fail(ExitCode::bad_input, "'{}' does not exist; if it is a dataset on the Hugging Face Hub, {}",
       name,
       make_json_lines(R"(load_dataset(sys.argv[1], split="train"))", name,
                       fs::path(name).filename().string()));
}

}  // namespace llamesh::data
