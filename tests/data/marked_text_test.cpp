#include "data/marked_text.hpp"

#include <gtest/gtest.h>

#include "data/chat_template.hpp"
#include "source_file.hpp"

namespace llamesh::data {
namespace {

std::string marked(const Document& document) {
  DataOptions options;
  options.tokenizer = test::source_file("tests/tokenizer/golden/qwen.json");
  options.chat_template = ChatTemplate::chatml;
  const auto tokenizer = tokenizer::open_tokenizer(options.tokenizer);
  const std::string file = "f";
  return marked_text(*tokenizer,
                     encode(*tokenizer, document_tokens(*tokenizer, options), document, {file, 1}));
}

TEST(MarkedText, HasWhatIsLearnedBetweenMarks) {
  using enum SegmentKind;
  EXPECT_EQ(marked({{{"<|im_start|>", false, false, token},
                     {"Who?\n", false, false, content},
                     {"God\x1b", true, false, content},
                     {"<|im_end|>", true, false, token},
                     {"\t", false, false, content},
                     {"\xc3\xa9", true, false, content}},
                    true}),
            "<|im_start|>Who?\n{+God\\x1b<|im_end|>+}\t{+\xc3\xa9+}");
}

}  // namespace
}  // namespace llamesh::data
