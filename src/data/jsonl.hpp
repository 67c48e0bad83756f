#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh::data {

/// A part of a document that counts in the loss, or does not.
struct Segment {
  std::string text;
  bool counts = true;
  bool ends = false;  ///< the end-of-sequence token follows, and counts if the text does
};

/// A line of a JSONL file, brought into the form in which a model reads it.
struct Document {
  std::vector<Segment> segments;  ///< at least one, and none without text
};

/// A line of a file, for messages.
struct LineNumber {
  const std::string& path;
  std::int64_t line;  ///< from 1
};

/// Parses one line, a JSON object. The first that fits is taken; a field that is null counts as
/// absent, and other fields are not looked at:
///
/// - `messages`, a list of {role: system|user|assistant, content}: a chat. A turn is
///   "<|ROLE|>\n" CONTENT "\n", that of the assistant "<|assistant|>\n" CONTENT EOS. Only the
///   assistant's CONTENT and EOS count; what follows its last turn is left out.
/// - `instruction`, `output` and perhaps `input`: Alpaca's form (tatsu-lab/stanford_alpaca). The
///   output and its EOS count, the prompt does not.
/// - `text`: all of it counts.
///
/// Throws a user error that begins with file and line when the line is no JSON object, has none of
/// these, or when what is to be learnt from it is empty. Memory: a few times the line.
Document parse_jsonl(std::string_view line, const LineNumber& where);

/// The lines of a file one after another; those with nothing but white space are passed over.
class JsonLines {
 public:
  /// `text` and `path` are borrowed.
  JsonLines(std::string_view text, const std::string& path) : rest_(text), path_(path) {}

  /// False at the end. Throws a user error for a line that is too long to be one.
  bool next(std::string_view& line);
  /// Of the line that next() gave last.
  LineNumber where() const { return {path_, line_}; }

 private:
  std::string_view rest_;
  const std::string& path_;
  std::int64_t line_ = 0;
};

}  // namespace llamesh::data
