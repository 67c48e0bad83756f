#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "train/job/watch.hpp"
#include "train/run.hpp"
#include "training/small_run.hpp"

namespace llamesh::test {

/// A folder of rank 0's that all ranks know.
class SharedFolder {
 public:
  SharedFolder() : path_(world().broadcast(own_.path().string())) {}
  ~SharedFolder() { world().barrier(); }  // nobody is in it any more when rank 0 removes it
  const std::filesystem::path& path() const { return path_; }

 private:
  TemporaryFolder own_;
  std::filesystem::path path_;
};

/// A small run of 12 steps in the folder, which all ranks share; it saves every 5 of them.
inline train::Inputs inputs_in(const std::filesystem::path& folder) {
  // Each rank writes the same text to the same file; one does it.
  train::Inputs in;
  if (world().rank() == 0) in = small_inputs(folder);
  world().barrier();
  if (world().rank() != 0) in = small_inputs(TemporaryFolder().path());
  in.data.train = {(folder / "text.txt").string()};
  in.run.folder = (folder / "run").string();
  in.train.steps = 12;
  in.checkpoint.every_steps = 5;
  in.checkpoint.keep = 9;
  return in;
}

inline void run_to_the_end(const train::Inputs& in) {
  const auto setup = train::make_setup(world(), in);
  auto watchdog = train::watch_over(world());
  EXPECT_EQ(train::run(world(), setup, "run: {}\n", {}, watchdog).code, ExitCode::done);
  world().barrier();
}

inline std::string checkpoint_of(const train::Inputs& in, const char* step) {
  return in.run.folder + "/checkpoints/step_000000" + step;
}

}  // namespace llamesh::test
