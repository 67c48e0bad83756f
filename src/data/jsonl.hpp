#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llamesh::data {

/// A part of a document that is in the loss as a whole, or masked from it.
struct TextSegment {
  std::string text;
  bool in_loss = true;
  bool eos_follows = false;  ///< in the loss if the text is
};

/// A record of a file, converted to the text that a model reads.
struct Document {
  std::vector<TextSegment> segments;  ///< at least one; only an answer may be without text
};

/// Where a record begins, for messages: "'f.jsonl', line 7" or "'f.json', record 3 (line 7)".
struct LineNumber {
  const std::string& path;
  std::int64_t line;        ///< from 1
  std::int64_t record = 0;  ///< of a JSON array, from 1; 0: the record is the line
};

/// Parses one record, a JSON object. The first that fits is taken; a field that is null counts as
/// absent, and other fields are not looked at:
///
/// - `messages`, a list of {role: system|user|assistant, content}: a chat. A turn is
///   "<|ROLE|>\n" CONTENT "\n", that of the assistant "<|assistant|>\n" CONTENT EOS. Only the
///   assistant's CONTENT and EOS are in the loss; what follows its last turn is left out.
/// - `instruction`, `output` and perhaps `input`: the prompts of Alpaca (PROMPT_DICT of train.py in
///   tatsu-lab/stanford_alpaca). The prompt is masked from the loss, the output and its EOS are
///   not. The output may be empty, as some of Alpaca's are: then EOS alone is learnt.
/// - `text`: all of it is in the loss.
///
/// Throws a user error that begins with `where` when the record is no JSON object, has none of
/// these, or when what is to be learnt from it is empty. Memory: a few times the record.
Document parse_jsonl(std::string_view record, const LineNumber& where);

/// True for names of files that are read as records: .jsonl and .json.
bool has_json_name(std::string_view path);

/// The records of a file one after another: its lines (those with nothing but white space are
/// passed over) or, where the file begins with [, the objects of this one JSON array. Only the
/// borders of the records are looked for here.
class JsonRecords {
 public:
  /// `text` and `path` are borrowed.
  JsonRecords(std::string_view text, const std::string& path);

  /// False at the end. Throws a user error with file and line for a record of more than 256 MiB,
  /// for something in the array that is no object, and for an array that is cut off.
  bool next(std::string_view& record);
  /// Of the record that next() gave last.
  LineNumber where() const { return {path_, line_, record_}; }

 private:
  bool next_line(std::string_view& line);
  bool next_object(std::string_view& object);
  void skip(std::size_t bytes);
  void skip_space();
  bool take(char expected);

  std::string_view rest_;
  const std::string& path_;
  bool in_array_ = false;
  bool ended_ = false;          ///< the array
  std::int64_t line_ = 0;       ///< in which the last record begins
  std::int64_t record_ = 0;     ///< number of the last record of an array
  std::int64_t next_line_ = 1;  ///< in which rest_ of an array begins
};

}  // namespace llamesh::data

template <>
struct fmt::formatter<llamesh::data::LineNumber> {
  static constexpr auto parse(const format_parse_context& context) { return context.begin(); }
  static auto format(const llamesh::data::LineNumber& where, format_context& context) {
    return where.record == 0 ? format_to(context.out(), "'{}', line {}", where.path, where.line)
                             : format_to(context.out(), "'{}', record {} (line {})", where.path,
                                         where.record, where.line);
  }
};
