#include "core/line_process.hpp"

#include <gtest/gtest.h>
#include <csignal>
#include <string>

#include "core/process.hpp"
#include "support.hpp"

namespace llamesh {
namespace {

TEST(LineProcess, AnswersLines) {
  LineProcess cat({"cat"});
  EXPECT_EQ(cat.ask("one"), "one");
  EXPECT_EQ(cat.ask("$(id) `id` \"two\""), "$(id) `id` \"two\"");
  const std::string large(3'000'000, 'x');
  EXPECT_EQ(cat.ask(large), large);
  LineProcess twice({"sed", "-u", "s/.*/&\\n&/"});
  EXPECT_EQ(twice.ask("a"), "a");
  EXPECT_EQ(twice.ask("b"), "a") << "what was left behind the first answer";
}

TEST(LineProcess, AnswersNothingOnceItHasEnded) {
  LineProcess ended({"true"});
  EXPECT_EQ(ended.ask("a"), "");
  EXPECT_EQ(ended.ask(std::string(1'000'000, 'x')), "");
  LineProcess once({"head", "-n", "1"});
  EXPECT_EQ(once.ask("a"), "a");
  EXPECT_EQ(once.ask("b"), "");
  EXPECT_EQ(received_stop_signal(), 0) << "no SIGPIPE";
}

TEST(LineProcess, IsRefusedIfItCannotBeStarted) {
  EXPECT_NE(test::error_of([] {
              LineProcess none({"there-is-no-such-program"});
            }).find("'there-is-no-such-program' cannot be started: No such file or directory"),
            std::string::npos);
}

TEST(LineProcess, DoesNotHearSignalsThatAskForAnEnd) {
  LineProcess shell({"sh", "-c", "read line; echo $$; exec cat"});
  const pid_t process = std::stoi(shell.ask(""));
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) ASSERT_EQ(kill(process, signal), 0);
  EXPECT_EQ(shell.ask("still here"), "still here");
}

}  // namespace
}  // namespace llamesh
