#pragma once

#include <string>
#include <string_view>

#include "checkpoint/models/hf_weights.hpp"

namespace llamesh::checkpoint {

/// How a folder names a language model's tensors, which may lack the family's prefix or be a part
/// in a model that takes images, too.
class FolderNames {
 public:
  /// Finds out by a tensor that every folder has. `prefix` is Family::base_prefix.
  FolderNames(const HfWeights& weights, std::string_view prefix, const std::string& tensor);

  /// Returns the folder's name for a tensor.
  std::string operator()(const std::string& name) const;
  /// Returns true for a tensor in the other parts, by the folder's name.
  bool is_of_other_part(std::string_view stored) const;

 private:
  enum class Kind {
    plain,
    bare,            ///< without the prefix: the folder's model has no head
    outside,         ///< language_model.PREFIX...
    inside,          ///< PREFIXlanguage_model.... ; the head's name is plain
    inside_as_text,  ///< the same with text_model
  };
  std::string named(Kind kind, const std::string& name) const;

  std::string prefix_;
  Kind kind_ = Kind::plain;
};

}  // namespace llamesh::checkpoint
