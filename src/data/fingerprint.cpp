#include "data/fingerprint.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "core/json.hpp"
#include "data/mapped_file.hpp"

namespace llamesh::data {
namespace {

using nlohmann::json;

constexpr std::int64_t text_version = 1;  // incremented when the hashing changes
constexpr std::size_t pieces = 8;
constexpr std::string_view jinja = "jinja:";  // before a template's hash

std::vector<FileFingerprint> source_from(const json& from) {
  std::vector<FileFingerprint> files;
  auto left = std::numeric_limits<std::int64_t>::max();  // so that their sum does not overflow
  for (const auto& file : from) {
    files.push_back({file.at("path"), to_integer(file.at("tokens"), 0, left),
                     from_hex(file.at("hash").get<std::string>())});
    left -= files.back().tokens;
  }
  return files;
}

DataOrder data_order_from(const json& from) {
  DataOrder order{to_integer(from.at("sequence_length"), 1), to_integer(from.at("global_batch"), 1),
                  from.at("order"), from.at("weights").get<std::vector<double>>()};
  order.chat_template = from.value("chat_template", order.chat_template);
  order.loss_on = from.value("loss_on", order.loss_on);
  if (!from.contains("packing")) return order;
  order.packing = from.at("packing").get<std::string>();
  order.documents = from_hex(from.at("documents").get<std::string>());
  return order;
}

std::int64_t tokens_of(const std::vector<FileFingerprint>& files) {
  std::int64_t tokens = 0;
  for (const auto& file : files) tokens += file.tokens;
  return tokens;
}

std::string difference(std::size_t source, const std::vector<FileFingerprint>& then,
                       const std::vector<FileFingerprint>& now) {
  if (then.size() != now.size())
    return fmt::format("source {} has {} files with {} tokens; it had {} with {}", source + 1,
                       now.size(), tokens_of(now), then.size(), tokens_of(then));
  for (std::size_t i = 0; i < now.size(); ++i)
    if (then[i].tokens != now[i].tokens || then[i].hash != now[i].hash)
      return fmt::format("'{}' has {} tokens (hash {}); '{}' had {} (hash {})", now[i].path,
                         now[i].tokens, to_hex(now[i].hash), then[i].path, then[i].tokens,
                         to_hex(then[i].hash));
  return "";
}

/// Describes how conversations have become other ids, if they have.
std::string chat_difference(const DataOrder& then, const DataOrder& now) {
  const auto other = [](const char* key, const std::string& is, const std::string& was) {
    return fmt::format("{0} is {1}; it was {2}; set {0}={3} to continue", key, is, was,
                       was.substr(0, was.find(':')));
  };
  if (then.chat_template.starts_with(jinja) && now.chat_template.starts_with(jinja) &&
      then.chat_template != now.chat_template)
    return fmt::format(
        "the chat template in the tokenizer's folder has hash {}; it had {}; the run folder has "
        "its text in chat_template.jinja",
        now.chat_template.substr(jinja.size()), then.chat_template.substr(jinja.size()));
  if (then.chat_template != now.chat_template)
    return other("data.chat_template", now.chat_template, then.chat_template);
  return then.loss_on == now.loss_on ? "" : other("data.loss_on", now.loss_on, then.loss_on);
}

/// Describes a difference; both have equally many sources.
std::string difference(const DataOrder& then, const DataOrder& now) {
  const auto other = [](const std::string& what, const auto& is, const auto& was) {
    return is == was ? "" : fmt::format("{} is {}; it was {}", what, is, was);
  };
  std::vector<std::string> texts = {
      other("data.sequence_length", now.sequence_length, then.sequence_length),
      other("train.global_batch", now.global_batch, then.global_batch),
      other("data.order", now.order, then.order), other("data.packing", now.packing, then.packing),
      other("the hash of where documents begin", to_hex(now.documents), to_hex(then.documents))};
  for (std::size_t i = 0; i < std::min(now.weights.size(), then.weights.size()); ++i)
    texts.push_back(
        other(fmt::format("the weight of source {}", i + 1), now.weights[i], then.weights[i]));
  const auto first = std::ranges::find_if_not(texts, &std::string::empty);
  return first == texts.end() ? "" : *first;
}

}  // namespace

void add_sample(RunningHash& hash, std::span<const std::uint8_t> bytes, std::size_t piece_bytes) {
  const std::uint64_t size = bytes.size();
  hash.add(&size, sizeof(size));
  if (size <= pieces * piece_bytes) return hash.add(bytes.data(), bytes.size());
  const auto piece = [&](std::size_t i) {
    return bytes.subspan((size - piece_bytes) * i / (pieces - 1), piece_bytes);
  };
  for (std::size_t i = 0; i < pieces; ++i) read_soon(piece(i));
  for (std::size_t i = 0; i < pieces; ++i) hash.add(piece(i).data(), piece_bytes);
}

std::size_t piece_bytes_for(std::size_t files) {
  constexpr std::size_t all = std::size_t{64} << 20U;
  constexpr std::size_t least = std::size_t{16} << 10U;
  constexpr std::size_t most = std::size_t{1} << 20U;
  return std::clamp(all / pieces / std::max<std::size_t>(files, 1), least, most);
}

std::string to_text(const Fingerprint& fingerprint) {
  json sources = json::array();
  for (const auto& files : fingerprint.sources) {
    auto& source = sources.emplace_back(json::array());
    for (const auto& file : files)
      source.push_back({{"path", file.path}, {"tokens", file.tokens}, {"hash", to_hex(file.hash)}});
  }
  json text = {{"version", text_version},
               {"tokenizer", fingerprint.tokenizer},
               {"vocabulary", to_hex(fingerprint.vocabulary)},
               {"sources", std::move(sources)}};
  if (const auto& a = fingerprint.data_order)  // the checkpoint format's key
    text["arrangement"] = {{"sequence_length", a->sequence_length},
                           {"global_batch", a->global_batch},
                           {"order", a->order},
                           {"weights", a->weights}};
  // What did not exist in earlier versions is written only if it differs from what they did.
  if (const auto& a = fingerprint.data_order; a && a->chat_template != "plain")
    text["arrangement"]["chat_template"] = a->chat_template;
  if (const auto& a = fingerprint.data_order; a && a->loss_on != "assistant")
    text["arrangement"]["loss_on"] = a->loss_on;
  if (const auto& a = fingerprint.data_order; a && a->packing != "concatenate") {
    text["arrangement"]["packing"] = a->packing;
    text["arrangement"]["documents"] = to_hex(a->documents);
  }
  // A path need not be UTF-8.
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<Fingerprint> parse_fingerprint(const std::string& text) {
  try {
    const json from = parse_json(text, "the data's fingerprint");
    if (from.at("version") != text_version) return std::nullopt;
    Fingerprint fingerprint{
        from.at("tokenizer"), from_hex(from.at("vocabulary").get<std::string>()), {}, {}};
    for (const auto& source : from.at("sources"))
      fingerprint.sources.push_back(source_from(source));
    if (const auto kept = from.find("arrangement"); kept != from.end())
      fingerprint.data_order = data_order_from(*kept);
    return fingerprint;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

std::string difference(const Fingerprint& then, const Fingerprint& now) {
  // Token files name no tokenizer; token files and text differ by their files' hashes anyway.
  const bool comparable = !then.tokenizer.empty() && !now.tokenizer.empty();
  if (comparable && then.vocabulary != now.vocabulary)
    return fmt::format(
        "the tokenizer '{0}' has other tokens (hash {1}) than '{2}' had (hash {3}); "
        "set data.tokenizer={2}",
        now.tokenizer, to_hex(now.vocabulary), then.tokenizer, to_hex(then.vocabulary));
  if (then.sources.size() != now.sources.size())
    return fmt::format("data.train has {} sources; it had {}", now.sources.size(),
                       then.sources.size());
  for (std::size_t i = 0; i < now.sources.size(); ++i) {
    auto text = difference(i, then.sources[i], now.sources[i]);
    if (text.empty()) continue;
    if (!then.data_order || !now.data_order || !comparable) return text;
    const auto chat = chat_difference(*then.data_order, *now.data_order);
    return chat.empty() ? text : chat;
  }
  if (!then.data_order || !now.data_order) return "";
  return difference(*then.data_order, *now.data_order);
}

}  // namespace llamesh::data
