#include <fmt/format.h>

#include <filesystem>
#include <utility>

#include "config/inputs.hpp"
#include "config/key_source.hpp"
#include "config/tree.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "data/chat_template.hpp"
#include "data/data_files.hpp"
#include "data/megatron.hpp"
#include "tokenizer/tokenizer.hpp"

namespace llamesh::config {
namespace {

namespace fs = std::filesystem;

/// Runs `action`; prefixes its errors with `where`, a file and a key.
template <class Action>
auto naming_key(const std::string& where, Action action) {
  try {
    return action();
  } catch (const Error& error) {
    fail(error.code(), "{}: {}", where, error.what());
  }
}

/// Replaces words by the files that they name.
class FileFinder {
 public:
  FileFinder(Inputs& inputs, const KeySource& where) : inputs_(inputs), where_(where) {}

  void expand(std::vector<std::string>& words, const char* key) {
    std::vector<std::string> files;
    naming_key(where_.with(key), [&] {
      for (const std::string& word : words)
        add(data::find_data_files(word, inputs_.data.format), key, files);
    });
    for (const std::string& file : files) validate_utf8(file, where_.with(key));
    words = std::move(files);
  }

 private:
  // The resolved inputs must be readable again, and parse_tree accepts 20,000 values in a MiB.
  static constexpr std::size_t max_files = 9'000;
  static constexpr std::size_t max_name_bytes = std::size_t{800} << 10U;

  void add(data::NamedFiles found, const std::string& key, std::vector<std::string>& files) {
    if (!found.note.empty()) inputs_.notes.push_back(fmt::format("{}: {}", key, found.note));
    count_ += found.files.size();
    for (std::string& file : found.files) {
      name_bytes_ += file.size();
      files.push_back(std::move(file));
    }
    validate(
        count_ <= max_files && name_bytes_ <= max_name_bytes,
        "{} data files with names of {} bytes are too many (at most {} and {}); merge them with "
        "`llamesh tokenize`",
        count_, name_bytes_, max_files, max_name_bytes);
  }

  Inputs& inputs_;
  const KeySource& where_;
  std::size_t count_ = 0;
  std::size_t name_bytes_ = 0;
};

/// Checks files in a stated format, as far as their readers would not name the key or the mistake.
void check_files(data::Format format, const std::vector<std::string>& files) {
  for (const auto& file : files)
    if (format == data::Format::text)
      data::check_text(file);
    else
      Descriptor::to_read(format == data::Format::megatron ? data::megatron_stem(file) + ".idx"
                                                           : file);
}

/// Returns the key that names the set's files.
const char* key_of(const train::ValidationSet& set) {
  return set.name == train::default_validation_set ? "data.validation" : "evaluate.files";
}

/// Determines the common format of all files, or checks them against the stated one.
void resolve_format(Inputs& in, const KeySource& where) {
  auto& data = in.data;
  const auto train_key = where.with("data.train");
  std::vector<std::string> training;
  for (const auto& source : data.training_sources())
    training.insert(training.end(), source.files.begin(), source.files.end());
  if (data.format != data::Format::automatic) {
    naming_key(train_key, [&] { check_files(data.format, training); });
    for (const auto& set : in.validation_sets())
      naming_key(where.with(key_of(set)), [&] { check_files(data.format, set.files); });
    return;
  }
  data.format = naming_key(train_key, [&] { return data::format_of(training, data.token_dtype); });
  for (auto& [name, files] : in.validation_sets()) {
    files.insert(files.begin(), training.front());
    naming_key(where.with(key_of({name, {}})), [&] { data::format_of(files, data.token_dtype); });
  }
}

bool has_tokenizer_file(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / "tokenizer.json", ignored) ||
         fs::exists(folder / "tokenizer.model", ignored);
}

/// Returns true if `tokenizer` is that folder or a file in it.
bool is_of_folder(const fs::path& tokenizer, const fs::path& folder) {
  std::error_code ignored;
  return fs::equivalent(tokenizer, folder, ignored) ||
         (tokenizer.has_filename() && fs::equivalent(tokenizer.parent_path(), folder, ignored));
}

void resolve_tokenizer(Inputs& in) {
  const std::string& folder = in.pretrained.hf;
  std::string& tokenizer = in.data.tokenizer;
  const bool folder_has_one = !folder.empty() && has_tokenizer_file(folder);
  const bool decided = tokenizer != "auto";
  if (!decided) tokenizer = folder_has_one ? folder : "byte";
  if (!data::is_text(in.data.format)) return;
  std::error_code ignored;
  validate(tokenizer == "byte" || fs::exists(tokenizer, ignored),
           "'{}' does not exist; give byte, a SentencePiece .model, a Hugging Face tokenizer.json, "
           "or a folder that holds one of them{}",
           tokenizer, did_you_mean_path(tokenizer));
  if (folder_has_one && decided && !is_of_folder(tokenizer, folder))
    in.notes.push_back(
        fmt::format("data.tokenizer is {}, but the model was trained with that of model.hf {}; set "
                    "data.tokenizer to "
                    "auto to use it",
                    tokenizer, folder));
  if (folder_has_one && !decided)
    in.notes.push_back(fmt::format("data.tokenizer: that of model.hf {}", folder));
  if (!folder.empty() && !folder_has_one && !decided)
    in.notes.push_back(fmt::format("model.hf {} has no tokenizer: data.tokenizer is byte", folder));
}

/// Notes what `auto` makes of the chat template in the tokenizer's folder.
void note_chat_template(Inputs& in) {
  using enum data::ChatTemplate;
  if (in.data.format != data::Format::jsonl || in.data.chat_template != automatic) return;
  const auto found = data::conversation_options(in.data).chat_template;
  if (found == jinja)
    in.notes.push_back(
        fmt::format("data.chat_template: the one in {}, which python3's jinja2 applies to "
                    "conversations",
                    in.data.tokenizer));
  else if (!tokenizer::chat_template_text(in.data.tokenizer))
    in.notes.push_back(fmt::format("data.chat_template: plain, as the tokenizer {} has no template",
                                   in.data.tokenizer));
  else
    in.notes.push_back(fmt::format("data.chat_template: {}, found in {}", data::name_of(found),
                                   in.data.tokenizer));
}

}  // namespace

void resolve_data(Inputs& in, const std::string& name, const std::vector<std::string>& overrides) {
  const KeySource where(name, overrides);
  auto& data = in.data;
  if (data.format != data::Format::random) {
    FileFinder finder(in, where);
    finder.expand(data.train, "data.train");
    for (auto& source : data.sources) finder.expand(source.files, "data.train");
    finder.expand(data.validation, "data.validation");
    for (auto& set : in.evaluate.files) finder.expand(set.files, "evaluate.files");
    resolve_format(in, where);
  }
  naming_key(where.with("data.tokenizer"), [&] { resolve_tokenizer(in); });
  naming_key(where.with("data.chat_template"), [&] { note_chat_template(in); });
  complete(in, where);  // some checks need the format
}

}  // namespace llamesh::config
