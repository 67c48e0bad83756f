#include "core/json.hpp"

#include <set>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh {
namespace {

using Json = nlohmann::ordered_json;

constexpr int max_depth = 32;
/// Limit per object. A model with that many tensors would have 2000 layers. Lookup is a linear
/// search, so an object takes quadratic time.
constexpr std::size_t max_keys = 20'000;

/// A parser callback that checks keys and depth during parsing.
class JsonGuard {
 public:
  explicit JsonGuard(const std::string& name) : name_(name) {}

  bool operator()(int, Json::parse_event_t event, Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        keys_.emplace_back();
        validate(keys_.size() <= max_depth, "{}: nested deeper than {} levels", name_, max_depth);
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::key: {
        const auto& key = parsed.get_ref<const std::string&>();
        validate(keys_.back().insert(key).second, "{}: key '{}' appears twice", name_,
                 excerpt(key));
        validate(keys_.back().size() <= max_keys, "{}: an object of more than {} keys", name_,
                 max_keys);
        break;
      }
      default:
        break;
    }
    return true;
  }

 private:
  const std::string& name_;
  std::vector<std::set<std::string>> keys_;  // for the enclosing objects
};

/// Refuses a text whose parser ended at a byte, counted from 1.
[[noreturn]] void refuse(std::string_view name, std::string_view not_json,
                         const nlohmann::json::parse_error& error) {
  const auto at = fmt::format("byte {}", error.byte);
  const auto problem = wrong_string(error, at);
  if (!problem.empty()) fail(ExitCode::bad_input, "{}: {}", name, problem);
  fail(ExitCode::bad_input, "{}: {} {}", name, not_json, at);
}

}  // namespace

std::string wrong_string(const nlohmann::json::exception& error, std::string_view at) {
  const std::string_view text = error.what();
  // Python's json.dumps writes them for characters that it could not decode.
  if (text.find("invalid string: surrogate") != text.npos)
    return fmt::format(
        "the \\u escape at {} is half of a surrogate pair, which is no character; remove it, or "
        "add the other half",
        at);
  const bool not_utf8 = text.find("invalid string: ill-formed UTF-8") != text.npos;
  return not_utf8 ? fmt::format("not UTF-8 at {}", at) : "";
}

Json parse_json_object(const std::string& text, const std::string& name) {
  // The parser would treat it as the end.
  validate(text.find('\0') == std::string::npos, "{}: not JSON: it has a zero byte", name);
  JsonGuard guard(name);
  Json json;
  try {
    json = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      return guard(depth, event, parsed);
    });
  } catch (const Json::parse_error& error) {
    refuse(name, "not JSON at its", error);
  } catch (const Json::exception&) {  // a number beyond the range of double
    fail(ExitCode::bad_input, "{}: not JSON: a number is out of range", name);
  }
  validate(json.is_object(), "{}: expected a JSON object, {{...}}", name);
  return json;
}

using nlohmann::json;

json parse_json(std::string_view text, std::string_view name) {
  constexpr int deepest = 32;
  const auto check_depth = [&](int depth, json::parse_event_t, json&) {
    validate(depth <= deepest, "{}: nested more than {} deep", name, deepest);
    return true;
  };
  const auto nul = text.find('\0');
  validate(nul == text.npos, "{}: not valid JSON: there is a NUL at byte {}", name, nul + 1);
  try {
    return json::parse(text, check_depth);
  } catch (const json::parse_error& error) {
    refuse(name, "not valid JSON at", error);
  } catch (const json::exception&) {
    fail(ExitCode::bad_input, "{}: not valid JSON: a number is out of range", name);
  }
}

std::int64_t to_integer(const json& value, std::int64_t least, std::int64_t most) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() ||
                     value.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
  const auto integer = fits ? value.get<std::int64_t>() : 0;
  validate(fits && integer >= least && integer <= most,
           "there is {} where an integer of {} to {} belongs",
           value.is_number() ? value.dump() : value.type_name(), least, most);
  return integer;
}

}  // namespace llamesh
