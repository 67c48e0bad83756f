#include "app/provenance/licenses.hpp"

#include <yaml-cpp/yaml.h>

#include <string_view>

#include "core/file.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t readme_bytes = 1 << 16;  // front matter comes first, and is short

/// Returns the YAML between the first two lines "---"; empty if there is none.
std::string front_matter(const fs::path& readme) {
  const auto file = Descriptor::to_read(readme);
  std::string text(readme_bytes, '\0');
  text.resize(static_cast<std::size_t>(file.read_some(0, text.data(), readme_bytes)));
  std::erase(text, '\r');
  constexpr std::string_view line = "---\n";
  if (!text.starts_with(line)) return "";
  const auto end = text.find("\n---", line.size() - 1);
  return end == text.npos ? "" : text.substr(line.size(), end + 1 - line.size());
}

/// Returns a scalar, or the items in a list: "mit, apache-2.0". Anything else is empty.
std::string words_of(const YAML::Node& value) {
  if (!value.IsDefined()) return "";
  if (value.IsScalar()) return value.Scalar();
  std::string words;
  if (value.IsSequence())
    for (const auto& item : value)
      if (item.IsScalar()) words += (words.empty() ? "" : ", ") + item.Scalar();
  return words;
}

/// Returns the license in a README.md; empty if it states none.
std::string license_of_readme(const fs::path& readme) {
  try {
    const YAML::Node header = YAML::Load(front_matter(readme));
    if (!header.IsMap()) return "";
    const auto name = words_of(header["license"]);
    const auto own_name = words_of(header["license_name"]);
    return name == "other" && !own_name.empty() ? own_name : name;
  } catch (const std::exception&) {  // not ours, and may hold anything
    return "";
  }
}

}  // namespace

std::optional<License> license_in(const fs::path& folder) {
  const auto readme = folder / "README.md";
  if (const auto name = license_of_readme(readme); !name.empty())
    return License{name, readme.string()};
  for (const char* name : {"LICENSE", "LICENSE.txt", "LICENSE.md", "COPYING"}) {
    std::error_code ignored;
    if (fs::is_regular_file(folder / name, ignored)) return License{name, (folder / name).string()};
  }
  return {};
}

}  // namespace llamesh::app
