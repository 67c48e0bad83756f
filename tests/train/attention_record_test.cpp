#include "train/engine/kernel_choice.hpp"

#include <gtest/gtest.h>

#include "core/error.hpp"
#include "support.hpp"

namespace llamesh::train {
namespace {

using test::world;

TEST(AttentionOfAJob, IsOneOnAllRanks) {
  check_attention(world(), "", "");  // on CPUs
  check_attention(world(), "", "built-in kernels by wgmma");
  const bool last = world().rank() + 1 == world().size();
  if (world().size() == 1) return;
  EXPECT_ANY_THROW(check_attention(world(), "", last ? "cuDNN 9.20.0" : "cuDNN 9.19.0"));
}

TEST(AttentionOfAJob, IsComparedWithTheCheckpoints) {
  const auto warning = [](const std::string& saved, const std::string& used) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    check_attention(world(), saved, used);
    return testing::internal::GetCapturedStdout() + testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warning("plain built-in kernels", "plain built-in kernels"), "");
  EXPECT_EQ(warning("", "plain built-in kernels"), "");
  EXPECT_EQ(warning("cuDNN 9.19.0", ""), "");
  const auto text = warning("cuDNN 9.19.0", "plain built-in kernels");
  EXPECT_EQ(
      text.find("by plain built-in kernels, in the checkpoint's steps it was by cuDNN 9.19.0") !=
          std::string::npos,
      world().rank() == 0)
      << text;
}

}  // namespace
}  // namespace llamesh::train
