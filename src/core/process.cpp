#include "core/process.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>

#include "core/error.hpp"
#include "core/text.hpp"

namespace llamesh {
namespace {

constexpr std::array stop_signals{SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU, SIGINT, SIGHUP, SIGPIPE};

std::atomic<unsigned> received = 0;               // bit n: signal n; set by the handler
std::atomic<std::uint32_t*> elsewhere = nullptr;  // same bits
static_assert(std::atomic<unsigned>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t*>::is_always_lock_free);

void note(int signal) {
  const auto bit = 1U << static_cast<unsigned>(signal);
  received.fetch_or(bit);
  if (auto* const bits = elsewhere.load(); bits != nullptr) std::atomic_ref(*bits).fetch_or(bit);
}

/// Gives the calling thread a stack for signal handlers, unless it has one.
void use_signal_stack() {
  alignas(64) static std::array<char, 1 << 16> memory;  // a frame with AMX registers takes 11 KiB
  stack_t stack{};
  expects(sigaltstack(nullptr, &stack) == 0, "the signal stack cannot be queried");
  if ((stack.ss_flags & SS_DISABLE) == 0) return;
  stack = {.ss_sp = memory.data(), .ss_flags = 0, .ss_size = memory.size()};
  expects(sigaltstack(&stack, nullptr) == 0, "the signal stack cannot be set");
}

std::string read_all(int file) {
  std::string text;
  std::array<char, 4096> part{};
  for (;;) {
    const auto bytes = read(file, part.data(), part.size());
    if (bytes > 0) text.append(part.data(), static_cast<std::size_t>(bytes));
    if (bytes == 0 || (bytes < 0 && errno != EINTR)) return text;
  }
}

}  // namespace

Process& this_process() {
  static Process process = [] {
    std::array<char, 256> name{};
    if (gethostname(name.data(), name.size() - 1) != 0) name[0] = '?';
    return Process{0, 1, name.data()};
  }();
  return process;
}

std::string output_of(const std::vector<std::string>& command, ErrorOutput errors) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return "";
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  if (errors == ErrorOutput::joined)
    posix_spawn_file_actions_adddup2(&files, ends[1], STDERR_FILENO);
  else
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t process = 0;
  const bool runs =
      posix_spawnp(&process, arguments.front(), &files, nullptr, arguments.data(), environ) == 0;
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  std::string text = read_all(ends[0]);
  close(ends[0]);
  while (runs && waitpid(process, nullptr, 0) < 0 && errno == EINTR) {
  }
  return text;
}

std::string command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::string text, word;
  while (std::getline(file, word, '\0')) text += (text.empty() ? "" : " ") + shell_word(word);
  return text;
}

std::string number_in_environment(const char* variable) {
  const char* value = std::getenv(variable);
  const std::string text = value == nullptr ? "" : value;
  return std::ranges::all_of(text, [](unsigned char c) { return std::isdigit(c); }) ? text : "";
}

void catch_stop_signals() {
  received = 0;
  use_signal_stack();
  for (const int signal : stop_signals) {
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    if (signal == SIGINT) action.sa_flags |= static_cast<int>(SA_RESETHAND);
    expects(sigaction(signal, &action, nullptr) == 0, "signal {} cannot be handled", signal);
  }
}

void block_stop_signals() noexcept {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : stop_signals) sigaddset(&set, signal);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

void record_stop_signals_in(std::uint32_t* bits) noexcept {
  elsewhere = bits;
  if (bits != nullptr) std::atomic_ref(*bits).fetch_or(received.load());
}

int received_stop_signal() noexcept {
  const unsigned all = received.load();
  for (const int signal : stop_signals)
    if ((all & (1U << static_cast<unsigned>(signal))) != 0) return signal;
  return 0;
}

}  // namespace llamesh
