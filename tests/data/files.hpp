#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support.hpp"
#include "temporary_folder.hpp"

namespace llamesh::test {

/// Returns the numbers' bytes, as they lie in memory.
template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

/// Returns llm.c's header.
inline std::string header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::vector<std::int32_t> words(256, 0);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  return bytes_of(words);
}

#define EXPECT_ERROR(action, part)                                                    \
  EXPECT_NE(::llamesh::test::error_of([&] { action; }).find(part), std::string::npos) \
      << ::llamesh::test::error_of([&] { action; })

}  // namespace llamesh::test
