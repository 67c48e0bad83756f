#include "app/json_output.hpp"

#include <fmt/format.h>

namespace llamesh::app {

void print_json(const Json& object) {
  fmt::print("{}\n", object.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace llamesh::app
