#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>

#include "comm/mpi/backoff.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/mpi/exchange.hpp"
#include "comm/mpi/mpi.hpp"
#include "comm/mpi/session.hpp"
#include "support.hpp"

namespace llamesh::comm {
namespace {

using test::world;

TEST(Communicator, SumsAndGathersByRank) {
  const int size = world().size();
  EXPECT_EQ(world().sum(std::int64_t{world().rank() + 1}), size * (size + 1) / 2);
  EXPECT_EQ(world().sum(0.5), 0.5 * size);
  EXPECT_EQ(world().max(world().rank()), size - 1);
  EXPECT_EQ(world().min(world().rank()), 0);
  const auto texts = world().all_gather(std::string(static_cast<std::size_t>(world().rank()), 'x'));
  for (int r = 0; r < size; ++r)
    EXPECT_EQ(texts[static_cast<std::size_t>(r)].size(), static_cast<std::size_t>(r));
  const std::string text = world().rank() == size - 1 ? "from the last" : "";
  EXPECT_EQ(world().broadcast(text, size - 1), "from the last");
}

TEST(Communicator, SplitsByColorInTheOrderOfKeys) {
  const auto part = world().split(world().rank() % 2, -world().rank());
  EXPECT_EQ(part.size(), (world().size() + 1 - world().rank() % 2) / 2);
  const auto members = part.all_gather(std::int64_t{world().rank()});
  EXPECT_TRUE(std::is_sorted(members.rbegin(), members.rend()));
  const auto copy = part.duplicate();
  EXPECT_EQ(copy.rank(), part.rank());
  EXPECT_EQ(copy.sum(std::int64_t{1}), part.size());
}

TEST(Backoff, YieldsInARowSleep) {
  // The MPI library resolves to the same function as this program.
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "sched_yield"), reinterpret_cast<void*>(&sched_yield));
  const auto sleeps = [] {  // a yield is no voluntary switch
    rusage usage{};
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
  };
  const auto before = sleeps();
  for (int i = 0; i < 1000; ++i) sched_yield();
  EXPECT_GT(sleeps() - before, 100);
}

/// While one thread ends the process, another may be the last to leave it.
TEST(Backoff, ThrowsTheCodeWithWhichTheProcessEnds) {
  const auto end = [] {
    stop_waiting(ExitCode::stopped_early);
    stop_waiting(ExitCode::internal_error);
    try {
      Backoff().pause();
    } catch (const PeerFailure& failure) {
      _exit(static_cast<int>(failure.code()));
    }
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(75), "");
}

TEST(Communicator, FailuresOfMpiAreThrownWithItsText) {
  int value = 0;
  try {
    check(MPI_Send(&value, 1, MPI_INT, world().size(), 0, native(world())), "a send to nobody");
    FAIL() << "a send to a rank that does not exist succeeded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(error_text(MPI_ERR_RANK)), std::string::npos)
        << error.what();
    EXPECT_NE(std::string(error.what()).find("a send to nobody"), std::string::npos);
    const bool has_peers = world().size() > 1;  // of which one may be lost
    EXPECT_EQ(error.code(), has_peers ? ExitCode::stopped_early : ExitCode::internal_error);
    EXPECT_EQ(dynamic_cast<const MpiFailure*>(&error) != nullptr, has_peers);
  }
}

/// Returns the exit code and text with which this rank left the phase.
std::pair<int, std::string> outcome(const std::function<void()>& phase) {
  try {
    agree(world(), phase);
  } catch (const PeerFailure& failed) {
    return {static_cast<int>(failed.code()), "follows"};
  } catch (const Error& error) {
    return {static_cast<int>(error.code()), error.what()};
  }
  return {0, ""};
}

TEST(Communicator, GathersAStructOfEachRank) {
  struct Numbers {
    double sum;
    std::int64_t rank;
  };
  const auto all = all_gather(world(), Numbers{0.1 * world().rank(), world().rank()}, "a test");
  ASSERT_EQ(std::ssize(all), world().size());
  for (int r = 0; r < world().size(); ++r) {
    EXPECT_EQ(all[static_cast<std::size_t>(r)].sum, 0.1 * r);
    EXPECT_EQ(all[static_cast<std::size_t>(r)].rank, r);
  }
}

TEST(Agree, EveryRankLeavesByTheLowestFailure) {
  const int last = world().size() - 1;
  const bool fails = world().rank() == last;
  EXPECT_EQ(outcome([] {}).first, 0);
  auto left = outcome([&] { validate(!fails, "bad file on {}", last); });
  EXPECT_EQ(left.first, 78);
  EXPECT_EQ(left.second, fails ? "bad file on " + std::to_string(last) : "follows");
  left = outcome([&] {
    if (fails) throw std::runtime_error("a library's error");
  });
  EXPECT_EQ(left.first, 70);
  EXPECT_EQ(left.second, fails ? "a library's error (this is a bug, please report it)" : "follows");
  left = outcome([&] {
    if (fails) static_cast<void>(std::filesystem::file_size("/nowhere/at all"));
  });
  EXPECT_EQ(left.first, 78);
  EXPECT_EQ(left.second, fails ? "/nowhere/at all: No such file or directory" : "follows");
  left = outcome([&] { fail(ExitCode::io_failure, "rank {} fails", world().rank()); });
  EXPECT_EQ(left.first, 74);
  EXPECT_EQ(left.second, world().rank() == 0 ? "rank 0 fails" : "follows");
}

TEST(Agree, KeepsTheTypeOfAnError) {
  const bool fails = world().rank() == world().size() - 1;
  try {
    agree(world(), [&] { validate_host(!fails, "/dev/shm is full"); });
    ADD_FAILURE() << "no error";
  } catch (const UnfitHost& error) {
    EXPECT_TRUE(fails);
    EXPECT_EQ(error.code(), ExitCode::bad_input);
  } catch (const PeerFailure&) {
    EXPECT_FALSE(fails);
  }
}

TEST(Agree, AndGatherGivesWhatEachRankFound) {
  const auto found = agree_and_gather(
      world(),
      [] {
        return std::array<std::int64_t, 2>{std::int64_t{10} * world().rank(), 7};
      },
      "a test");
  ASSERT_EQ(std::ssize(found), world().size());
  for (int r = 0; r < world().size(); ++r)
    EXPECT_EQ(found[static_cast<std::size_t>(r)],
              (std::array<std::int64_t, 2>{std::int64_t{10} * r, 7}));
  const auto left = outcome([] {
    agree_and_gather(
        world(),
        []() -> std::array<std::int64_t, 2> {
          validate(world().rank() != 0, "bad file");
          return {};
        },
        "a test");
  });
  EXPECT_EQ(left.first, 78);
  EXPECT_EQ(left.second, world().rank() == 0 ? "bad file" : "follows");
}

TEST(Agree, TheOriginalErrorIsToldRatherThanOneThatFollows) {
  const int last = world().size() - 1;
  const auto left = outcome([&] {
    if (world().rank() == last) fail(ExitCode::io_failure, "the origin");
    throw PeerFailure(ExitCode::bad_input);
  });
  EXPECT_EQ(left.first, 74);
  EXPECT_EQ(left.second, world().rank() == last ? "the origin" : "follows");
}

TEST(Agree, OnRankZeroGivesItsTextToAll) {
  EXPECT_EQ(on_rank_0(world(), [] { return "rank " + std::to_string(world().rank()); }), "rank 0");
  EXPECT_THROW(on_rank_0(world(), []() -> std::string { throw std::runtime_error("no"); }), Error);
}

}  // namespace
}  // namespace llamesh::comm
