#include "app/status/run_status.hpp"

#include <exception>
#include <string>

#include "core/json.hpp"

namespace llamesh::app {
namespace {

constexpr const char* words[] = {"kind",       "host", "phase",  "axis",
                                 "collective", "unit", "detail", "at"};
constexpr const char* numbers[] = {"rank", "step"};

Json nothing_known() {
  return {{"kind", nullptr},       {"rank", nullptr}, {"host", nullptr},
          {"phase", nullptr},      {"step", nullptr}, {"axis", nullptr},
          {"collective", nullptr}, {"unit", nullptr}, {"waiting", Json::array()},
          {"detail", nullptr},     {"at", nullptr}};
}

}  // namespace

Json parse_failure(std::string_view text) {
  try {
    const auto json = parse_json(text, "failure.json");
    if (!json.is_object()) return nullptr;
    Json failure = nothing_known();
    for (const char* key : words)
      if (const auto at = json.find(key);
          at != json.end() && at->is_string() && !at->get_ref<const std::string&>().empty())
        failure[key] = *at;
    for (const char* key : numbers)
      if (const auto at = json.find(key); at != json.end() && at->is_number_integer() && *at >= 0)
        failure[key] = *at;
    if (const auto at = json.find("waiting"); at != json.end() && at->is_array())
      for (const auto& rank : *at)
        if (rank.is_number_integer()) failure["waiting"].push_back(Json(rank));
    return failure;
  } catch (const std::exception&) {
    return nullptr;
  }
}

Json failure_of(const train::RunState& state) {
  const bool failed = state.phase == train::RunPhase::failed;
  if (!failed && state.faulty_ranks.empty()) return nullptr;
  Json failure = nothing_known();
  if (!state.faulty_ranks.empty()) failure["rank"] = state.faulty_ranks.front();
  if (!state.faulty_hosts.empty()) failure["host"] = state.faulty_hosts.front();
  if (!state.doing.empty()) failure["phase"] = state.doing;
  failure["detail"] = state.reason;
  failure["at"] = state.time;
  return failure;
}

}  // namespace llamesh::app
