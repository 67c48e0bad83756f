#pragma once

#include <string>
#include <vector>

namespace llamesh::app {

struct TokenizeArguments {
  std::string tokenizer;            ///< what tokenizer::open_tokenizer takes
  std::vector<std::string> inputs;  ///< text files, and JSON records (.jsonl, .json)
  std::string output;
  int threads = 0;        ///< 0: as many as the process may run at once
  std::string separator;  ///< text between documents; empty: a file is a document
};

/// `llamesh tokenize`: writes the documents of all inputs in order, each with the tokenizer's
/// prefix and suffix tokens (of JSONL as data::parse_jsonl and data::DocumentTokens say, `text`
/// lines only), as one token file with llm.c's header: uint16 when the vocabulary fits into it,
/// else uint32. The file appears under its name when it is complete. Returns the exit code.
int tokenize(const TokenizeArguments& arguments);

}  // namespace llamesh::app
