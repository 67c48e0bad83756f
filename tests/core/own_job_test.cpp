#include "core/slurm/own_job.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace llamesh {
namespace {

TEST(OwnJob, AsksOnlyAboutThisTaskOfAnArray) {
  for (const char* variable : {"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"})
    unsetenv(variable);
  EXPECT_EQ(own_job_id(), std::nullopt);
  EXPECT_EQ(ask_squeue("%L"), "");
  setenv("SLURM_JOB_ID", "42", 1);
  EXPECT_EQ(own_job_id(), "42");
  setenv("SLURM_ARRAY_JOB_ID", "42", 1);
  setenv("SLURM_ARRAY_TASK_ID", "3", 1);
  EXPECT_EQ(own_job_id(), "42_3");
  setenv("SLURM_JOB_ID", "50", 1);
  EXPECT_EQ(own_job_id(), "50") << "another task, or a job that a task has submitted";
  setenv("SLURM_JOB_ID", "42", 1);
  setenv("SLURM_ARRAY_TASK_ID", "3; reboot", 1);
  EXPECT_EQ(own_job_id(), "42");
  for (const char* variable : {"SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"})
    unsetenv(variable);
}

TEST(OwnJob, HasAnotherNameOnceItIsRequeued) {
  setenv("SLURM_JOB_ID", "42", 1);
  unsetenv("SLURM_RESTART_COUNT");
  EXPECT_EQ(job_name(), "42.0");
  setenv("SLURM_RESTART_COUNT", "2", 1);
  EXPECT_EQ(job_name(), "42.2");
  unsetenv("SLURM_JOB_ID");
  unsetenv("SLURM_RESTART_COUNT");
  EXPECT_TRUE(job_name().ends_with(".0")) << job_name();
}

}  // namespace
}  // namespace llamesh
