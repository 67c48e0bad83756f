#include "checkpoint/models/folder_names.hpp"

#include <algorithm>

namespace llamesh::checkpoint {
namespace {

constexpr const char* language_model = "language_model.";
constexpr const char* text_model = "text_model.";  // Idefics 3's name for it
constexpr std::string_view other_parts[] = {"vision_tower.", "multi_modal_projector.",
                                            "image_newline", "vision_model.", "connector."};
/// The other part in Qwen's and GLM's folders, where the language model may have plain names.
constexpr std::string_view visual = "visual.";

}  // namespace

FolderNames::FolderNames(const HfWeights& weights, std::string_view prefix,
                         const std::string& tensor)
    : prefix_(prefix) {
  for (const auto kind :
       {Kind::plain, Kind::bare, Kind::outside, Kind::inside, Kind::inside_as_text}) {
    if (!weights.has(named(kind, tensor))) continue;
    kind_ = kind;
    return;
  }
}

std::string FolderNames::operator()(const std::string& name) const {
  return named(kind_, name);
}

std::string FolderNames::named(Kind kind, const std::string& name) const {
  const bool has_prefix = name.starts_with(prefix_);
  switch (kind) {
    case Kind::bare:
      return has_prefix ? name.substr(prefix_.size()) : name;
    case Kind::outside:
      return language_model + name;
    case Kind::inside:
      return has_prefix ? prefix_ + language_model + name.substr(prefix_.size()) : name;
    case Kind::inside_as_text:
      return has_prefix ? prefix_ + text_model + name.substr(prefix_.size()) : name;
    case Kind::plain:
      break;
  }
  return name;
}

bool FolderNames::is_of_other_part(std::string_view stored) const {
  const bool inside = kind_ == Kind::inside || kind_ == Kind::inside_as_text;
  if (inside && stored.starts_with(prefix_)) stored.remove_prefix(prefix_.size());
  const auto is_in = [&](std::string_view part) { return stored.starts_with(part); };
  if (kind_ == Kind::bare) return false;
  return is_in(visual) || (kind_ != Kind::plain && std::ranges::any_of(other_parts, is_in));
}

}  // namespace llamesh::checkpoint
