#pragma once

// Every sanitizer's library has it. No macro of the compiler would do: with AddressSanitizer tests
// are compiled without it (tests/CMakeLists.txt).
extern "C" void __sanitizer_set_death_callback(void (*)())  // NOLINT(bugprone-reserved-identifier)
    __attribute__((weak));

namespace llamesh::test {

/// Whether a sanitizer makes the tests some ten times as slow.
inline const bool sanitized = &__sanitizer_set_death_callback != nullptr;

}  // namespace llamesh::test
