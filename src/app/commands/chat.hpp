#pragma once

#include <string>

#include "app/commands/generation.hpp"

namespace llamesh::app {

/// Answers `message` in the model's chat template, or holds a conversation: one line from standard
/// input is one message, /reset begins anew, the end of the input ends it. SIGINT ends an answer.
/// Returns the exit code. Collective.
int chat(const Ranks& ranks, Generator& generator, const GenerationArguments& arguments,
         const std::string& message);

/// Files for answer_records().
struct AnswerFiles {
  std::string input;   ///< JSON records with `prompt` or `messages`
  std::string output;  ///< the same with `answer`
  bool chat = false;   ///< a prompt is a user's message
};

/// Answers all records of a file that have no answer yet in the output. Collective. Throws a user
/// error that names file and line for a record without a prompt, one that is too long, or an output
/// that has the answers to other records.
void answer_records(const Ranks& ranks, Generator& generator, const GenerationArguments& arguments,
                    const AnswerFiles& files);

}  // namespace llamesh::app
