#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <string>

#include "checkpoint/format/manifest.hpp"
#include "core/error.hpp"

namespace {

int countdown = 0;                         // the allocation that makes it 0 fails
constexpr std::size_t least_bytes = 1024;  // minimum size; JSON's destructors allocate less

}  // namespace

// Not inlined: GCC would take them for mismatched pairs.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  void* const at = countdown > 0 && bytes >= least_bytes && --countdown == 0
                       ? nullptr
                       : std::malloc(bytes == 0 ? 1 : bytes);
  if (at == nullptr) throw std::bad_alloc();
  return at;
}
[[gnu::noinline]] void operator delete(void* at) noexcept {
  std::free(at);
}
[[gnu::noinline]] void operator delete(void* at, std::size_t) noexcept {
  std::free(at);
}

namespace llamesh::checkpoint {
namespace {

/// Each larger allocation while reading a manifest fails in turn. The error must name the file, and
/// must not take a good checkpoint for a damaged one (exit 74), which would be quarantined.
TEST(ParseManifest, WithoutMemoryIsNoDamage) {
  Manifest manifest{{}, 0, 0, {}};
  manifest.progress.step = 7;
  manifest.progress.config.assign(10'000, 'c');
  const auto text = to_text(manifest);
  const std::string name = "step_00000007/manifest.json";
  int failed = 0;
  for (bool parsed = false; !parsed; ++failed) {
    try {
      countdown = failed + 1;
      parsed = parse_manifest(text, name).progress.step == 7;
      countdown = 0;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::bad_input) << "allocation " << failed + 1;
      EXPECT_EQ(error.what(), name + ": the host has too little memory to read it");
    }
  }
  EXPECT_GT(failed, 4);
}

}  // namespace
}  // namespace llamesh::checkpoint
