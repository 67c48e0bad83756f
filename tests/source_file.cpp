#include "source_file.hpp"

std::string llamesh::test::source_file(const std::string& name) {
  return LLAMESH_SOURCE_FOLDER "/" + name;
}
