#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "app/commands/chat.hpp"
#include "app/models/prompt_tokens.hpp"
#include "app/program/output_file.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/json.hpp"
#include "data/chat_prompt.hpp"
#include "data/chat_template.hpp"
#include "data/mapped_file.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* answer_key = "answer";

/// The records, and the file for their answers. On rank 0 only.
class Records {
 public:
  explicit Records(const AnswerFiles& files) : files_(files), input_(files.input) {
    data::JsonRecords records(
        {reinterpret_cast<const char*>(input_.bytes().data()), input_.bytes().size()},
        files_.input);
    for (std::string_view record; records.next(record);) {
      lines_.push_back(records.where().line);
      records_.push_back(
          parse_json_object(std::string(record), fmt::format("{}", records.where())));
    }
    validate(files_.output != "-",
             "--output -: answers are appended to a file, so that an interrupted command can go "
             "on; name one");
    skip_answered();
  }

  std::size_t size() const { return records_.size(); }
  std::size_t answered() const { return answered_; }
  const Json& at(std::size_t record) const { return records_[record]; }
  data::LineNumber where(std::size_t record) const { return {files_.input, lines_[record]}; }

  /// Appends a record with its answer, which outlives this process.
  void write(std::size_t record, const std::string& answer) {
    Json with_answer = records_[record];
    with_answer[answer_key] = answer;
    const auto line = with_answer.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
    std::ofstream out(files_.output, std::ios::binary | std::ios::app);
    out << line << std::flush;
    validate(out.good(), "'{}' cannot be written", files_.output);
  }

 private:
  /// Counts the answers that are there. A line that an interruption has cut off is removed.
  void skip_answered() {
    std::error_code ignored;
    if (!fs::exists(files_.output, ignored)) return;
    validate(fs::is_regular_file(files_.output, ignored), "--output '{}' is not a file",
             files_.output);
    std::ifstream in(files_.output, std::ios::binary);
    std::uintmax_t whole = 0;
    for (std::string line; std::getline(in, line) && !in.eof(); ++answered_) {
      const auto name = fmt::format("'{}', line {}", files_.output, answered_ + 1);
      auto made = parse_json_object(line, name);
      made.erase(answer_key);
      auto asked = answered_ < size() ? records_[answered_] : Json();
      if (asked.is_object()) asked.erase(answer_key);
      validate(made == asked,
               "{} has the answer to another record than '{}'; name another --output", name,
               files_.input);
      whole += line.size() + 1;
    }
    in.close();
    if (whole < fs::file_size(files_.output)) fs::resize_file(files_.output, whole);
  }

  const AnswerFiles& files_;
  data::MappedFile input_;
  std::vector<std::int64_t> lines_;
  std::vector<Json> records_;
  std::size_t answered_ = 0;
};

bool is_conversation(const Json& record, const AnswerFiles& files) {
  return files.chat || record.contains("messages");
}

/// Returns a record's conversation: its messages, or its prompt as a user's message.
std::vector<data::ChatMessage> messages_of(const Json& record, const std::string& system,
                                           const data::LineNumber& where) {
  std::vector<data::ChatMessage> messages;
  if (!system.empty()) messages.push_back({"system", system});
  const auto list =
      record.contains("messages")
          ? record.at("messages")
          : Json::array({{{"role", "user"}, {"content", record.value("prompt", Json())}}});
  validate(list.is_array() && !list.empty(), "{}: 'messages' is not a list of messages", where);
  for (const auto& message : list) {
    validate(message.is_object() && message.value("role", Json()).is_string() &&
                 message.value("content", Json()).is_string(),
             "{}: a message needs 'role' and 'content', both texts", where);
    messages.push_back({message.at("role"), message.at("content")});
  }
  validate(messages.back().role != "assistant",
           "{}: the last message is the assistant's, so there is nothing to answer", where);
  return messages;
}

/// The records' prompts as ids. On rank 0 only.
class Prompts {
 public:
  Prompts(const Records& records, const Generator& generator, const AnswerFiles& files)
      : generator_(generator), files_(files) {
    for (std::size_t i = 0; i < records.size(); ++i)
      if (is_conversation(records.at(i), files) && !special_)
        special_ = data::document_tokens(generator.tokenizer(), generator.data());
  }

  /// Returns the token that ends answers, if there are conversations and it exists.
  std::vector<std::int32_t> end() const {
    const auto id = special_ ? data::answer_end(generator_.tokenizer(), *special_) : std::nullopt;
    return id ? std::vector{*id} : std::vector<std::int32_t>();
  }

  std::vector<std::int32_t> ids_of(const Json& record, const std::string& system,
                                   const data::LineNumber& where) const {
    validate(record.contains("messages") || record.value("prompt", Json()).is_string(),
             "{}: has neither 'messages' nor a text as 'prompt'", where);
    auto ids = is_conversation(record, files_)
                   ? data::chat_prompt(generator_.tokenizer(), *special_,
                                       messages_of(record, system, where), where)
                   : encode_prompt(generator_.tokenizer(), generator_.model().data,
                                   record.at("prompt").get<std::string>())
                         .ids;
    validate(!ids.empty(), "{}: the prompt is empty", where);
    validate(std::ssize(ids) < generator_.positions(),
             "{}: the prompt has {} tokens, and with its answer there is room for {}; raise "
             "--context, or shorten it",
             where, ids.size(), generator_.positions());
    return ids;
  }

 private:
  const Generator& generator_;
  const AnswerFiles& files_;
  std::optional<data::DocumentTokens> special_;
};

}  // namespace

void answer_records(const Ranks& ranks, Generator& generator, const GenerationArguments& arguments,
                    const AnswerFiles& files) {
  std::optional<Records> records;
  std::optional<Prompts> prompts;
  const auto counts = ranks.ids_on_rank_0([&] {
    records.emplace(files);
    prompts.emplace(*records, generator, files);
    return std::vector{static_cast<std::int32_t>(records->answered()),
                       static_cast<std::int32_t>(records->size())};
  });
  if (ranks.prints() && counts[0] > 0)
    fmt::print(stderr,
               "{} of {} answers are in {} already, whatever options they were made with; to make "
               "them again, remove it\n",
               counts[0], counts[1], files.output);
  for (const auto id : ranks.ids_on_rank_0([&] { return prompts->end(); })) generator.add_end(id);
  std::int64_t positions = 0;
  ranks.agree([&] { positions = room_of(arguments, generator.model().config); });
  ranks.run([&] { generator.make_room(positions); });
  for (auto number = counts[0]; number < counts[1]; ++number) {
    const auto index = static_cast<std::size_t>(number);
    const auto record = Json::parse(ranks.on_rank_0([&] { return records->at(index).dump(); }));
    const auto prompt = ranks.ids_on_rank_0(
        [&] { return prompts->ids_of(record, arguments.system, records->where(index)); });
    const auto room = generator.positions() - std::ssize(prompt);
    const auto by_default = is_conversation(record, files) ? room : default_new_tokens;
    generator.seed(arguments.sampling.seed + index);  // the same after an interruption
    GeneratedText made;
    ranks.run([&] {
      made = generator.continue_from(prompt, prompt,
                                     std::min(room, arguments.max_tokens.value_or(by_default)),
                                     [](const std::string&) {});
    });
    ranks.agree([&] {
      if (ranks.prints()) records->write(index, made.text);
    });
    if (ranks.prints())
      fmt::print(stderr, "{} of {} answered, {} tokens in {:.1f} s\n", number + 1, counts[1],
                 made.tokens, made.seconds);
  }
}

}  // namespace llamesh::app
