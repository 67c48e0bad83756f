#include "train/step/sample_texts.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "comm/mpi/exchange.hpp"
#include "comm/mpi/session.hpp"
#include "core/error.hpp"
#include "data/chat_prompt.hpp"
#include "sharding/mesh_tensor_parallel.hpp"

namespace llamesh::train {
namespace {

constexpr std::int32_t no_token = -1;

/// Returns the likeliest of the tokenizer's tokens, the lower id among equals; no_token if the
/// logits are not finite.
std::int32_t likeliest(std::span<const float> logits, std::int64_t vocabulary) {
  const auto known = logits.first(static_cast<std::size_t>(vocabulary));
  if (!std::ranges::all_of(known, [](float logit) { return std::isfinite(logit); }))
    return no_token;
  return static_cast<std::int32_t>(std::ranges::max_element(known) - known.begin());
}

}  // namespace

SampleTexts::SampleTexts(const comm::Communicator& world, const Setup& setup)
    : world_(world), setup_(setup) {
  const Inputs& in = setup.inputs;
  prompts_.resize(in.evaluate.prompts.size());
  if (prompts_.empty()) return;
  comm::agree(world, [&] {
    if (world.rank() != 0) return;
    tokenizer_ = tokenizer::open_tokenizer(in.data.tokenizer);
    validate(tokenizer_->vocab_size() <= in.model.vocab_size,
             "evaluate.prompts: the tokenizer {} has {} ids, but model.vocab_size is {}; name the "
             "model's own in data.tokenizer",
             in.data.tokenizer, tokenizer_->vocab_size(), in.model.vocab_size);
    const auto special = data::document_tokens(*tokenizer_, in.data);
    ends_ = {special.suffix_ids.front(), special.eos};
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      const auto& prompt = in.evaluate.prompts[i];
      const std::string where = "evaluate.prompts";
      if (in.evaluate.chat) {
        const std::vector<data::ChatMessage> messages{{"user", prompt}};
        prompts_[i] = data::chat_prompt(*tokenizer_, special, messages,
                                        {where, static_cast<std::int64_t>(i) + 1});
      } else {
        prompts_[i] = special.prefix_ids;
        tokenizer_->encode(prompt, tokenizer::Chunk::first, prompts_[i]);
      }
      validate(!prompts_[i].empty(), "evaluate.prompts: '{}' has no token; write one", prompt);
      const auto needed = std::ssize(prompts_[i]) + in.evaluate.max_tokens;
      model::check_positions(in.model, needed, "shorten evaluate.prompts or evaluate.max_tokens");
    }
    if (in.evaluate.chat)
      if (const auto end = data::answer_end(*tokenizer_, special)) ends_.push_back(*end);
  });
  for (auto& prompt : prompts_) prompt = comm::broadcast_list(world, prompt);
}

std::vector<SampleText> SampleTexts::write(Engine& engine,
                                           const std::function<void()>& on_progress) {
  std::vector<SampleText> samples;
  if (empty()) return samples;
  const Inputs& in = setup_.inputs;
  std::size_t longest = 0;
  for (const auto& prompt : prompts_) longest = std::max(longest, prompt.size());
  const auto positions = static_cast<std::int64_t>(longest) + in.evaluate.max_tokens;
  const auto dtype = in.precision.parameters;
  const auto tensor = sharding::make_tensor_parallel(
      engine.mesh, {sharding::ResidualLayout::whole},
      std::min(positions, model::Decoder::largest_chunk), in.model.hidden_size, dtype);
  model::Decoder decoder(in.model, setup_.layout->local_table(), engine.fsdp, positions,
                         {dtype, in.precision.linear}, *tensor);
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const auto ids = continue_from(decoder, prompts_[i], on_progress);
    if (world_.rank() != 0) continue;
    tokenizer::TextStream stream(*tokenizer_);
    for (const auto id : prompts_[i]) stream.push(id);
    std::string text;
    for (const auto id : ids) text += stream.push(id);
    samples.push_back({in.evaluate.prompts[i], text + stream.finish()});
  }
  return samples;
}

/// Rank 0 chooses, since ranks with other hardware may compute other bits.
std::vector<std::int32_t> SampleTexts::continue_from(model::Decoder& decoder,
                                                     const std::vector<std::int32_t>& prompt,
                                                     const std::function<void()>& on_progress) {
  decoder.rewind(0);
  std::vector<std::int32_t> written;
  auto logits = decoder.feed(prompt);
  while (true) {
    on_progress();
    auto next = no_token;
    if (world_.rank() == 0) {
      next = likeliest(logits, tokenizer_->vocab_size());
      if (std::ranges::find(ends_, next) != ends_.end()) next = no_token;
    }
    next = comm::broadcast_list(world_, std::vector{next}).front();
    if (next == no_token) return written;
    written.push_back(next);
    if (std::ssize(written) == setup_.inputs.evaluate.max_tokens) return written;
    logits = decoder.feed({&next, 1});
  }
}

}  // namespace llamesh::train
