#include "app/supervise/child.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "core/error.hpp"

namespace llamesh::app {

Child::Child(std::vector<std::string> command) {
  std::vector<char*> words;
  for (auto& word : command) words.push_back(word.data());
  words.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  const int error = posix_spawnp(&process_, words.front(), &files, nullptr, words.data(), environ);
  posix_spawn_file_actions_destroy(&files);
  validate(error == 0, "cannot start {}: {}; check PATH", command.front(), std::strerror(error));
}

Child::~Child() {
  send(SIGKILL);
  if (!exit_code_) waitpid(process_, nullptr, 0);
}

std::optional<int> Child::exit_code() {
  int status = 0;
  if (!exit_code_ && waitpid(process_, &status, WNOHANG) == process_)
    exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return exit_code_;
}

void Child::send(int signal) {
  if (!exit_code_) kill(process_, signal);
}

}  // namespace llamesh::app
