#pragma once

// Defined by every sanitizer's library. No compiler macro would do: with AddressSanitizer, tests
// are compiled without it (tests/CMakeLists.txt).
extern "C" void __sanitizer_set_death_callback(void (*)())  // NOLINT(bugprone-reserved-identifier)
    __attribute__((weak));

namespace llamesh::test {

/// True if a sanitizer makes the tests some ten times slower.
inline const bool sanitized = &__sanitizer_set_death_callback != nullptr;

}  // namespace llamesh::test
