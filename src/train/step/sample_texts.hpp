#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "comm/mpi/communicator.hpp"
#include "model/decoder.hpp"
#include "tokenizer/tokenizer.hpp"
#include "train/engine/engine.hpp"
#include "train/records/sample_text.hpp"
#include "train/setup/setup.hpp"

namespace llamesh::train {

/// Writes on behind `evaluate.prompts` with a model in training, each time the likeliest token, up
/// to the one that ends a document or an answer. All ranks compute each token together, on gathered
/// weights as in an evaluation.
class SampleTexts {
 public:
  /// Encodes the prompts on rank 0: as documents begin, or with evaluate.chat as a user's message
  /// in a conversation. Borrows the arguments. Throws a user error if one cannot be encoded or has
  /// too many tokens for the model. Collective.
  SampleTexts(const comm::Communicator& world, const Setup& setup);

  bool empty() const { return prompts_.empty(); }
  /// Returns a text for each prompt, on rank 0; nothing on others. Its memory is allocated only
  /// meanwhile. `on_progress` is called after each token. A model without a likeliest token, whose
  /// numbers are not finite, writes nothing more. Collective.
  std::vector<SampleText> write(Engine& engine, const std::function<void()>& on_progress);

 private:
  std::vector<std::int32_t> continue_from(model::Decoder& decoder,
                                          const std::vector<std::int32_t>& prompt,
                                          const std::function<void()>& on_progress);

  const comm::Communicator& world_;
  const Setup& setup_;
  std::shared_ptr<const tokenizer::Tokenizer> tokenizer_;  ///< on rank 0
  std::vector<std::vector<std::int32_t>> prompts_;
  std::vector<std::int32_t> ends_;  ///< on rank 0
};

}  // namespace llamesh::train
