#include "core/line_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "core/error.hpp"

namespace llamesh {

LineProcess::LineProcess(const std::vector<std::string>& command) {
  // A socket, since a write to a pipe whose reader has ended raises SIGPIPE.
  std::array<int, 2> ends{};
  expects(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0,
          "a pair of sockets cannot be made: {}", std::strerror(errno));
  std::vector<std::string> words = command;
  std::vector<char*> arguments;
  for (auto& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&files, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t blocked;
  sigfillset(&blocked);
  posix_spawnattr_setsigmask(&attributes, &blocked);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  const int error =
      posix_spawnp(&process_, arguments.front(), &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  close(ends[1]);
  socket_ = ends[0];
  if (error == 0) return;
  close(socket_);
  fail(ExitCode::bad_input, "'{}' cannot be started: {}", command.front(), std::strerror(error));
}

LineProcess::~LineProcess() {
  close(socket_);
  while (waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string LineProcess::ask(std::string_view line) {
  const std::string question = std::string(line) + '\n';
  std::string_view unsent = question;
  for (;;) {
    // The program may answer while the end of a long line is still on its way to it.
    pollfd events{socket_, static_cast<short>(unsent.empty() ? POLLIN : POLLIN | POLLOUT), 0};
    if (poll(&events, 1, -1) < 0 && errno != EINTR) return "";
    if ((events.revents & POLLOUT) != 0 && !send(unsent)) return "";
    if ((events.revents & (POLLIN | POLLHUP)) != 0 && !receive()) return "";
    const auto end = unsent.empty() ? received_.find('\n') : std::string::npos;
    if (end == std::string::npos) continue;
    std::string answer = received_.substr(0, end);
    received_.erase(0, end + 1);
    return answer;
  }
}

bool LineProcess::send(std::string_view& text) const {
  const auto bytes = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (bytes < 0) return errno == EINTR || errno == EAGAIN;
  text.remove_prefix(static_cast<std::size_t>(bytes));
  return true;
}

bool LineProcess::receive() {
  std::array<char, 1 << 16> part{};
  const auto bytes = recv(socket_, part.data(), part.size(), MSG_DONTWAIT);
  if (bytes < 0) return errno == EINTR || errno == EAGAIN;
  received_.append(part.data(), static_cast<std::size_t>(bytes));
  return bytes > 0;
}

}  // namespace llamesh
