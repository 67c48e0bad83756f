#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/error.hpp"

namespace llamesh::test {

/// Runs `action`, which must return or throw a one-line error, for bad input (exit 78) or with the
/// code `other`. Anything else ends the program, which is what a fuzzer looks for.
template <class Action>
void expect_an_answer(const Action& action, ExitCode other = ExitCode::bad_input) {
  try {
    action();
  } catch (const Error& error) {
    const bool sound = error.code() == ExitCode::bad_input || error.code() == other;
    if (sound && std::strchr(error.what(), '\n') == nullptr) return;
    std::fprintf(stderr, "%s\n", error.what());
    std::abort();
  }
}

/// Ends the program with a reason unless `ok`.
inline void expect(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

}  // namespace llamesh::test
