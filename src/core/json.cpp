#include "core/json.hpp"

#include "core/error.hpp"

namespace llamesh {

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
    fail(ExitCode::bad_input, "{}: not valid JSON at byte {}", name, error.byte);
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
