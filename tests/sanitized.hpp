#pragma once

namespace llamesh::test {

/// Whether a sanitizer makes the tests some ten times as slow.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool sanitized = true;
#else
inline constexpr bool sanitized = false;
#endif

}  // namespace llamesh::test
