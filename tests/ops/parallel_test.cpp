#include "ops/cpu/parallel.hpp"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <new>
#include <set>
#include <thread>
#include <vector>

namespace llamesh::ops::cpu {
namespace {

/// Sets the number of threads while it lives.
class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

/// Scratch is kept per thread, and the plan counts only threads with a task.
TEST(ForEachTask, GivesFewTasksToTheSameThreadsEachTime) {
  constexpr std::int64_t tasks = 3;
  const Threads eight(8);
  std::set<std::thread::id> working;
  for (int time = 0; time < 100; ++time) {
    std::vector<std::thread::id> threads(tasks);
    for_each_task(tasks, [&](std::int64_t task) {
      threads[static_cast<std::size_t>(task)] = std::this_thread::get_id();
    });
    working.insert(threads.begin(), threads.end());
  }
  EXPECT_EQ(working.size(), tasks);
}

TEST(ForEachTask, RunsEachTaskOnceAndRethrows) {
  const Threads four(4);
  for (const std::int64_t tasks : {0, 1, 3, 4, 5, 100}) {
    std::vector<int> runs(static_cast<std::size_t>(tasks));
    const auto run = [&](std::int64_t task) {
      ++runs[static_cast<std::size_t>(task)];
      if (task == 2) throw std::bad_alloc();
    };
    if (tasks > 2)
      EXPECT_THROW(for_each_task(tasks, run), std::bad_alloc);
    else
      for_each_task(tasks, run);
    EXPECT_EQ(std::ranges::count(runs, 1), tasks);
  }
}

}  // namespace
}  // namespace llamesh::ops::cpu
