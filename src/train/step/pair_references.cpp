#include "train/step/pair_references.hpp"

namespace llamesh::train {

std::vector<const data::TokenStream*> pair_streams(const Setup& setup) {
  std::vector<const data::TokenStream*> streams;
  for (std::size_t source = 0; source < setup.train_tokens->sources(); ++source)
    streams.push_back(&setup.train_tokens->stream(source));
  for (const auto& tokens : setup.validation_tokens) streams.push_back(&tokens);
  return streams;
}

}  // namespace llamesh::train
