#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "data/encode_jsonl.hpp"
#include "data/token_file.hpp"
#include "runs/small_run.hpp"

namespace llamesh::test {
namespace {

/// Returns inputs with two JSONL sources, short documents and instructions, with weights and
/// document masks.
train::Inputs packed_inputs(const TemporaryFolder& folder) {
  train::Inputs in = small_inputs(folder.path());
  const auto texts = folder.path() / "texts.jsonl";
  const auto answers = folder.path() / "answers.jsonl";
  std::ofstream out(texts);
  for (int i = 0; i < 300; ++i)
    out << R"({"text": "lamp )" << i * i % 97 << " of " << i % 7 << "\"}\n";
  out.close();
  out.open(answers);
  for (int i = 0; i < 12; ++i)
    out << R"({"instruction": "Double )" << i << R"(", "output": "It is )" << 2 * i << "\"}\n";
  out.close();
  in.data.format = data::Format::jsonl;
  in.data.train.clear();
  in.data.sources = {{{texts.string()}, 1.0}, {{answers.string()}, 1.5}};
  in.data.document_mask = true;
  in.sharding.strategy = sharding::Strategy::hybrid_shard;
  in.mesh.ranks_per_node = world().size() % 2 == 0 ? world().size() / 2 : 0;
  return in;
}

TEST(PackedDocuments, EveryMeshSeesTheSameOnes) {
  const TemporaryFolder folder;
  const auto in = packed_inputs(folder);
  const auto here = run(world(), in);
  const auto alone = run_alone(in);
  ASSERT_EQ(here.losses.size(), alone.losses.size());
  EXPECT_LT(alone.losses.back(), 0.8 * alone.losses.front()) << "the run learnt nothing";
  for (std::size_t i = 0; i < here.losses.size(); ++i)
    EXPECT_NEAR(here.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i + 1;
}

TEST(PackedDocuments, TheMaskReachesTheModel) {
  const TemporaryFolder folder;
  auto in = packed_inputs(folder);
  in.train.steps = 1;
  const auto masked = run_alone(in);
  in.data.document_mask = false;
  const auto open = run_alone(in);
  // Targets and visible keys differ, which changes the loss by far more than rounding.
  EXPECT_GT(std::abs(masked.losses[0] - open.losses[0]), 1e-4);
}

/// Returns inputs with conversations and instructions in a JSONL file.
train::Inputs conversation_inputs(const std::filesystem::path& folder) {
  train::Inputs in = small_inputs(folder);
  const auto chats = folder / "chats.jsonl";
  std::ofstream out(chats);
  for (int i = 0; i < 40; ++i) {
    out << R"({"messages": [{"role": "user", "content": "Double )" << i
        << R"("}, {"role": "assistant", "content": "It is )" << 2 * i << "\"}]}\n";
    if (i % 7 == 0)
      out << R"({"instruction": "Say )" << i << R"(", "output": "ok"})"
          << "\n";
    if (i % 5 == 0) out << R"({"text": "lamp )" << i << "\"}\n";
  }
  in.data.format = data::Format::jsonl;
  in.data.chat_template = data::ChatTemplate::plain;
  in.data.train = {chats.string()};
  in.train.steps = 3;
  return in;
}

/// Writes the conversations as a Megatron-LM pair with a loss mask, as `llamesh tokenize` does.
train::Inputs tokenized(train::Inputs in) {
  const data::MappedFile text(in.data.train.front());
  const auto tokenizer = tokenizer::open_tokenizer("byte");
  const auto stem = in.data.train.front() + ".tokens";
  data::TokenFileWriter file(stem + ".idx", in.model.vocab_size);
  data::encode_jsonl(*tokenizer, data::document_tokens(*tokenizer, in.data),
                     {reinterpret_cast<const char*>(text.bytes().data()), text.bytes().size()},
                     text.path(), 1, [&](const data::EncodedDocument& document, auto&&...) {
                       file.append(document.ids, document.masked_ranges);
                       file.end_document();
                     });
  file.commit();
  in.data.train = {stem};
  in.data.format = data::Format::megatron;
  in.run.folder += "-tokens";
  return in;
}

TEST(MaskedTokenFiles, TrainAsTheirConversationsToTheBit) {
  const TemporaryFolder folder;
  auto from_text = conversation_inputs(folder.path());
  auto from_tokens = tokenized(from_text);
  using enum data::Packing;
  for (const auto packing : {concatenate, best_fit, none}) {
    for (auto* in : {&from_text, &from_tokens}) {
      in->data.packing = packing;
      in->data.document_mask = packing != concatenate;
    }
    EXPECT_EQ(run(world(), from_text).losses, run(world(), from_tokens).losses)
        << static_cast<int>(packing);
  }
  std::filesystem::remove(from_tokens.data.train.front() + ".mask.npy");
  EXPECT_NE(run(world(), from_text).losses, run(world(), from_tokens).losses);
}

TEST(RandomTokens, TrainAndValidateWithoutAFile) {
  const TemporaryFolder folder;
  train::Inputs in = small_inputs(folder.path());
  in.data.format = data::Format::random;
  in.data.train.clear();
  in.evaluate.every_steps = in.train.steps;
  in.evaluate.batches = 1;
  const auto here = run(world(), in);
  const auto alone = run_alone(in);
  ASSERT_EQ(here.losses.size(), alone.losses.size());
  for (std::size_t i = 0; i < here.losses.size(); ++i)
    EXPECT_NEAR(here.losses[i], alone.losses[i], 1e-5 * alone.losses[i]) << "step " << i + 1;
}

}  // namespace
}  // namespace llamesh::test
