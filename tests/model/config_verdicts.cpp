// Reads a config.json on each line, and writes what llamesh makes of it on a line, as JSON: its own
// config.json of the same model, or the error message if it refuses it.
// tests/model/golden/config_mutations.py compares with transformers, known_configs.py lists models.
#include <spdlog/spdlog.h>

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.hpp"
#include "model/description/config_json.hpp"

int main() {
  spdlog::set_level(spdlog::level::off);
  for (std::string text; std::getline(std::cin, text);) {
    try {
      const auto config = llamesh::model::parse_config_json(text, "config.json");
      std::cout << nlohmann::json::parse(llamesh::model::to_config_json(config)).dump() << '\n';
    } catch (const llamesh::Error& error) {
      std::cout << nlohmann::json(error.what()).dump() << '\n';
    }
  }
}
