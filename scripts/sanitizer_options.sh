# Sourced by scripts/test_preset.sh and tests/fuzz/run.sh: options of the sanitizers under MPI, for
# those that a build has.
suppressions=$PWD/scripts/sanitizers
# A failed allocation returns a null pointer, as without a sanitizer.
# intercept_tls_get_addr=0: else LeakSanitizer takes a library's thread-local block for one of
# glibc's own if it happens to begin 16 bytes into a page, and crashes on the bytes before it. The
# blocks are still found, through malloc().
export ASAN_OPTIONS="detect_leaks=1:abort_on_error=0:strict_string_checks=1:allocator_may_return_null=1:intercept_tls_get_addr=0"
export LSAN_OPTIONS="suppressions=$suppressions/leaks.txt:print_suppressions=0"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1"
export TSAN_OPTIONS="suppressions=$suppressions/threads.txt:halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1"
