#include <algorithm>

#include "core/hash.hpp"
#include "data/chat_template.hpp"

namespace llamesh::data {
namespace {

struct KnownTemplate {
  std::uint64_t hash;  ///< XXH3-64 of the Jinja text
  ChatTemplate chat_template;
};

// The texts come from copies of the models' tokenizer_config.json, which the comments name. A
// model's folder in a public repository, whose chat_template has the hash:
//   (p) as published: checkpoints/meta-llama/Llama-2-7b-chat-hf in Navyabhat03/ERA-V1-Session-22
//       (1cd4f22a), qwen2 in ttssrr423/qwenBatchInference (0b6924f9; Qwen1.5-14B-Chat);
//   (s) saved again with other settings: Meta-Llama-3-8B-Instruct in YJiangcm/WebR (e161704d). The
//       same text is in Google's vertex-ai-samples, which name its line in revision a5a71a75 of
//       Meta-Llama-3-70B-Instruct.
// Quoted only:
//   (a) the strings in tests/test-chat-template.cpp of llama.cpp (as in the source archive of
//       llama_cpp_python 0.3.36), (b) its folder models/templates, (c)
//       packages/jinja/test/e2e.test.js of huggingface.js, (d) other public sources that quote
//       them, (e) transformers 4.40.2.
// Copies spell a line end in a string as \n or as a line end, and may end with one. Jinja reads
// both alike, so both have an entry. tests/data/golden/make_chat_golden.py renders each of them.
constexpr KnownTemplate known_templates[] = {
    // docs/data.md, with BOS and without
    {0xa85476d808e4082d, ChatTemplate::plain},
    {0xdbf9fdb75c5a2e23, ChatTemplate::plain},
    // Llama-2-7b-chat-hf (p)
    {0x24f6d97f87d647f5, ChatTemplate::llama2},
    // The same with line ends for \n (d); default_chat_template of LlamaTokenizerFast (e)
    {0xcb7c5112dfc4a3b0, ChatTemplate::llama2},
    {0xa74aa2617afe5384, ChatTemplate::llama2},
    // Meta-Llama-3-8B-Instruct with add_generation_prompt (s); with \n for line ends (d)
    {0x9799ad6e2dea0594, ChatTemplate::llama3},
    {0x866fc8fa50da12fe, ChatTemplate::llama3},
    // Llama-3.1-8B-Instruct, Llama-3.3-70B-Instruct (b, c)
    {0xa8344fceb19d98ce, ChatTemplate::llama3_1},
    {0x6ca7779b7730196a, ChatTemplate::llama3_1},
    // OpenHermes-2.5-Mistral-7B (a, c)
    {0xa04f41d813a07b13, ChatTemplate::chatml},
    {0x4c6e807ee5fe9f4a, ChatTemplate::chatml},
    // Qwen1.5-14B-Chat (p), Qwen2-7B-Instruct (d); with \n for line ends (d)
    {0xd5d943bd0bd9082f, ChatTemplate::qwen2},
    {0xc79034a9d5f0ae58, ChatTemplate::qwen2},
    // Qwen2.5-7B-Instruct (b, c)
    {0x639547fe4d33fa67, ChatTemplate::qwen2_5},
    {0x2469c9508f79506e, ChatTemplate::qwen2_5},
    // SmolLM2-360M-Instruct (d)
    {0x99ab995e9629dacd, ChatTemplate::smollm2},
    {0x83059ddcb62b07a0, ChatTemplate::smollm2},
    // Mixtral-8x7B-Instruct-v0.1 (c), Mistral-7B-Instruct-v0.2 before it had a system message (a)
    {0xa5d004210ebce758, ChatTemplate::mistral_v0},
    // Mistral-7B-Instruct-v0.2, "v1" (a)
    {0xf89cfc57f651ff3d, ChatTemplate::mistral_v1},
    {0xd40f466f5b2860c8, ChatTemplate::mistral_v1},
    // Mistral-Large-Instruct-2407, "v3" (a)
    {0xc6614466504d495b, ChatTemplate::mistral_v3},
    {0x27a26dbe0f7fa896, ChatTemplate::mistral_v3},
    // zephyr-7b-beta (c)
    {0x1db34e9fc60441d8, ChatTemplate::zephyr},
    {0xd9fe74edcb57aa82, ChatTemplate::zephyr},
};

}  // namespace

std::optional<ChatTemplate> find_chat_template(std::uint64_t hash) {
  const auto* const found = std::ranges::find(known_templates, hash, &KnownTemplate::hash);
  if (found == std::end(known_templates)) return std::nullopt;
  return found->chat_template;
}

}  // namespace llamesh::data
