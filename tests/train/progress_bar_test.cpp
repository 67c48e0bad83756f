#include "train/terminal/progress_bar.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "core/error.hpp"
#include "core/log.hpp"
#include "temporary_folder.hpp"

namespace llamesh::train {
namespace {

std::vector<std::string> step_of_100(int step) {
  return {fmt::format("step {:>3}/100", step), "loss 2.3457", "12345 tokens/s", "MFU 42 %",
          "memory 1234.0/4321.0 MiB"};
}

TEST(BarLine, FitsEveryWidthAndLeavesOutTheLeastImportant) {
  const auto line = [](int columns, double left = 61) {
    return bar_line(0.5, step_of_100(50), left, columns);
  };
  for (int columns = 1; columns <= 200; ++columns)
    EXPECT_LT(line(columns).size(), static_cast<std::size_t>(columns));
  EXPECT_EQ(line(20), "[##..] step  50/100");
  EXPECT_EQ(line(40), "[####....] step  50/100  loss 2.3457");
  EXPECT_EQ(line(80), "[########........] step  50/100  loss 2.3457  0:01:01 left  12345 tokens/s");
  EXPECT_EQ(line(200, 7325),
            "[############............] step  50/100  loss 2.3457  2:02:05 left  12345 tokens/s  "
            "MFU 42 %  memory 1234.0/4321.0 MiB");
}

TEST(BarLine, TakesImpossibleNumbers) {
  EXPECT_EQ(bar_line(0, {}, -1, 30), "[......] 0:00:00 left");
  EXPECT_EQ(bar_line(3, {"all"}, 1e300, 32), "[######] all  100000:00:00 left");
  EXPECT_EQ(bar_line(1, {"all"}, 0, 0), "");
}

/// Standard error as a separate terminal whose output can be read.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) : saved_(dup(STDERR_FILENO)) {
    std::fflush(stderr);
    int slave = -1;
    EXPECT_EQ(openpty(&master_, &slave, nullptr, nullptr, nullptr), 0);
    dup2(slave, STDERR_FILENO);
    close(slave);
    fcntl(master_, F_SETFL, O_NONBLOCK);
    resize(columns);
  }
  ~Terminal() {
    std::fflush(stderr);
    dup2(saved_, STDERR_FILENO);
    close(saved_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void resize(unsigned short columns) const {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = columns;
    EXPECT_EQ(ioctl(master_, TIOCSWINSZ, &size), 0);
  }
  /// Returns the output since the last call.
  std::string read() const {
    std::fflush(stderr);
    std::string text;
    std::array<char, 4096> part{};
    for (ssize_t count = 0; (count = ::read(master_, part.data(), part.size())) > 0;)
      text.append(part.data(), static_cast<std::size_t>(count));
    return text;
  }

 private:
  int saved_;
  int master_ = -1;
};

const std::string clears = "\r\033[K";

/// The log as main() sets it up.
class Progress : public testing::Test {
 protected:
  void SetUp() override { setup_logging(); }
  void TearDown() override { setup_logging(); }  // without a test's files
};

TEST_F(Progress, DrawsOneLineOverAndOverAtAnyWidth) {
  const Terminal terminal(80);
  ProgressBar progress(0, 100, 1);
  int step = 0;
  for (const int columns : {80, 120, 20, 40, 0, 80}) {  // 0: unknown
    terminal.resize(static_cast<unsigned short>(columns));
    for (int i = 0; i < 15; ++i) {
      ++step;
      progress.show(step, step_of_100(step), step * 0.01);
      const auto text = terminal.read();
      const auto before = step == 1 ? "" : clears;
      ASSERT_TRUE(text.starts_with(before)) << text;
      EXPECT_LT(text.size() - before.size(), static_cast<std::size_t>(columns > 0 ? columns : 80));
      EXPECT_EQ(text.find('\n'), std::string::npos) << "it scrolls";
      EXPECT_NE(text.find(fmt::format("step {:>3}", step)), std::string::npos);
    }
  }
  spdlog::warn("beware");
  const auto text = terminal.read();
  EXPECT_TRUE(text.starts_with(clears)) << text;
  EXPECT_NE(text.find("beware\r\n["), std::string::npos) << "not above the bar: " << text;
  print_error("it is over");
  EXPECT_EQ(terminal.read(), clears + "llamesh: it is over\r\n");
}

TEST_F(Progress, IsRemovedAtTheEnd) {
  const Terminal terminal(80);
  {
    ProgressBar progress(0, 100, 10);
    progress.show(1, step_of_100(1), 0.1);
    terminal.read();
  }
  EXPECT_EQ(terminal.read(), clears);
}

TEST_F(Progress, ShowsFewLinesAboveIt) {
  const Terminal terminal(200);
  ProgressBar progress(0, 1000, 1);
  std::string text;
  for (int step = 1; step <= 100; ++step) {
    progress.show(step, step_of_100(step), step * 0.2);
    text += terminal.read();
  }
  EXPECT_EQ(std::ranges::count(text, '\n'), 4) << "every 5 s: " << text;
}

TEST_F(Progress, IsNotSilentForLongWhereStepsAreSlow) {
  const auto lines_of = [&](double seconds_per_step, int steps) {
    testing::internal::CaptureStderr();  // no terminal
    {
      ProgressBar progress(0, 1 << 20, 1 << 20);
      for (int step = 1; step <= steps; ++step)
        progress.show(step, step_of_100(step), step * seconds_per_step);
    }
    return std::ranges::count(testing::internal::GetCapturedStderr(), '\n');
  };
  EXPECT_EQ(lines_of(0.5, 9), 0);
  EXPECT_EQ(lines_of(0.5, 30), 3) << "every 5 s";
  EXPECT_EQ(lines_of(60, 10), 10) << "each of slow steps";
  // A week of 10 s steps: once per hundredth of the time, not 60,480 lines.
  EXPECT_LT(lines_of(10, 60'480), 1000);
}

TEST_F(Progress, LeavesMostLinesOfTheLogToTheFile) {
  const test::TemporaryFolder folder;
  const auto file = folder.path() / "log.txt";
  log_to_file(file.string());
  {
    const Terminal terminal(80);
    ProgressBar progress(0, 10, 4);
    for (int step = 1; step <= 10; ++step) progress.show(step, step_of_100(step), step * 0.1);
    EXPECT_EQ(std::ranges::count(terminal.read(), '\n'), 1) << "not the last step's alone";
  }
  std::ifstream in(file);
  std::string seen;
  for (std::string line; std::getline(in, line);) {
    EXPECT_NE(line.find("memory 1234.0/4321.0 MiB"), std::string::npos) << line;
    seen += line.substr(line.find("step"), 12) + ';';
  }
  EXPECT_EQ(seen, "step   4/100;step   8/100;step  10/100;");
}

}  // namespace
}  // namespace llamesh::train
