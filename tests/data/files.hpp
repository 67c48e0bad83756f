#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace llamesh::test {

/// A folder that is removed with all its files at the end of the scope.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    char pattern[] = "/tmp/llamesh-data-XXXXXX";
    path_ = ::mkdtemp(pattern);
    ::chmod(path_.c_str(), 0755);  // also for the user that a test turns into
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

 private:
  std::string path_;
};

/// The bytes of numbers, as they lie in memory.
template <class T>
std::string bytes_of(const std::vector<T>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T)};
}

/// llm.c's header.
inline std::string header(std::int32_t magic, std::int32_t version, std::int32_t count) {
  std::vector<std::int32_t> words(256, 0);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  return bytes_of(words);
}

/// Runs `action`, which must end in a user error with exit 78; returns its text.
template <class Action>
std::string error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_input) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

#define EXPECT_ERROR(action, part)                                                    \
  EXPECT_NE(::llamesh::test::error_of([&] { action; }).find(part), std::string::npos) \
      << ::llamesh::test::error_of([&] { action; })

}  // namespace llamesh::test
