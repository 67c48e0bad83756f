#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "captured_log.hpp"
#include "forged_snapshot.hpp"
#include "memory_run.hpp"

// Memory checkpoints whose hashes are right and whose contents are not.

namespace llamesh::test {
namespace {

using checkpoint::RemoteReplicas;
using checkpoint::SnapshotHeader;
using nlohmann::json;

constexpr std::int64_t beyond = std::int64_t{1} << 62U;

/// Change of a snapshot, and the reason for which it is not used.
struct Forgery {
  std::string reason;
  std::function<void(const std::filesystem::path& file)> make;
};

Forgery in_header(const std::string& reason, const std::function<void(SnapshotHeader&)>& change) {
  return {reason, [=](const auto& file) {
            forge(file, [&](SnapshotHeader& header, std::string&) { change(header); });
          }};
}

Forgery in_text(const std::string& reason, const std::function<void(json&)>& change) {
  return {reason, [=](const auto& file) { forge_text(file, change); }};
}

Forgery with_text(const std::string& reason, const std::string& text) {
  return {reason, [=](const auto& file) {
            forge(file, [&](SnapshotHeader&, std::string& was) { was = text; });
          }};
}

std::vector<Forgery> forgeries() {
  std::vector<Forgery> all{
      in_header("its step is 4611686018427387904", [](auto& h) { h.step = beyond; }),
      in_header("its step is -1", [](auto& h) { h.step = -1; }),
      in_header("its header says step 7, its JSON step 3", [](auto& h) { h.step = 7; }),
      in_header("of step 3 and names step 4 on disk", [](auto& h) { h.disk_step = 4; }),
      in_header("of step 3 and names step -2 on disk", [](auto& h) { h.disk_step = -2; }),
      in_header("its key is 0000000000000007", [](auto& h) { h.key.hash = 7; }),
      in_header("its shards have ", [](auto& h) { h.key.bytes += 64; }),
      in_header("its shards have -1 bytes", [](auto& h) { h.key.bytes = -1; }),
      in_header("where its header says ", [](auto& h) { h.json_bytes = 1 << 20U; }),
      in_header("its JSON has 1099511627776 bytes",
                [](auto& h) { h.json_bytes = std::int64_t{1} << 40U; }),
      in_header("its JSON has -1 bytes", [](auto& h) { h.json_bytes = -1; }),
      in_header("not valid JSON", [](auto& h) { --h.json_bytes; }),
      in_header("not valid JSON", [](auto& h) { ++h.json_bytes; }),
      in_text("its header says step 3, its JSON step 4", [](json& text) { text["step"] = 4; }),
      in_text("base: path: there is none", [](json& text) { text["base"] = json::object(); }),
      in_text("base: hash: '1' is no hash",
              [](json& text) {
                text["base"] = {{"path", "/model"}, {"hash", "1"}};
              }),
      in_text("it holds all weights, but its JSON names a base model",
              [](json& text) {
                text["base"] = {{"path", "/model"}, {"hash", "0123456789abcdef"}};
              }),
      with_text("not valid JSON", ""),
      with_text("not valid JSON", "{\"step\":3"),
      with_text("step: there is none", "[]"),
  };
  for (const auto& number : {json(beyond), json(-1), json(2.5), json("3"), json(true)})
    for (const std::string key : {"step", "tokens", "seed"})
      if (key == "step" || number != beyond)
        all.push_back(in_text(key + ": there is ", [=](json& text) { text[key] = number; }));
  const std::vector<std::string> required{"step",     "tokens", "seed",  "mesh",
                                          "strategy", "config", "model", "llamesh_version"};
  for (const auto& key : required)
    all.push_back(in_text(key + ": there is none", [=](json& text) { text.erase(key); }));
  for (const std::string key : {"mesh", "strategy", "config", "model", "llamesh_version", "data",
                                "bf16_products", "attention", "arithmetic", "validation"})
    for (const auto& value : {json(nullptr), json(1), json::array(), json::object()})
      all.push_back(in_text(key + ": there is ", [=](json& text) { text[key] = value; }));
  return all;
}

TEST(MemoryForgeries, GiveWayByNameToTheStepBefore) {
  const Job job(1);
  for (const auto& [reason, make] : forgeries()) {
    SCOPED_TRACE(reason);
    const MemoryRun run(RemoteReplicas::off);
    run.save(job, 3);
    std::vector<std::filesystem::path> files;
    MemoryRun::alone([&, &forge_one = make] {
      files = run.snapshots_of(3);
      std::ranges::for_each(files, forge_one);
    });
    const CapturedLog log;
    EXPECT_EQ(run.resume(job), 2);
    if (world().rank() != 0) continue;
    const auto file = std::ranges::find_if(
        files, [&](const auto& path) { return log.has(path.string() + " is not used: "); });
    EXPECT_NE(file, files.end()) << log.text();
    EXPECT_TRUE(log.has(reason)) << log.text();
    EXPECT_TRUE(log.has("; the run goes on from step 2 in memory")) << log.text();
    EXPECT_EQ(log.text().find("json.exception"), std::string::npos) << log.text();
  }
}

TEST(MemoryForgeries, AreReplacedByCopiesOnAnotherNode) {
  const MemoryRun run;
  if (run.topology.nodes == 1) return;
  const Job job(1);
  run.save(job, 3);
  MemoryRun::alone([&] {
    for (const auto& file : run.snapshots_of(3, 0))
      forge_text(file, [](json& text) { text.erase("tokens"); });
  });
  EXPECT_EQ(run.resume(job), 3);
}

TEST(MemoryForgeries, GiveWayToTheDiskIfThereIsNoOtherStep) {
  const MemoryRun run(RemoteReplicas::off);
  const Job job(1);
  run.save(job, 3, /*disk_step=*/1);
  MemoryRun::alone([&] {
    for (const int step : {2, 3})
      for (const auto& file : run.snapshots_of(step))
        forge_text(file, [](json& text) { text.erase("config"); });
  });
  job.fill(9);
  const CapturedLog log;
  EXPECT_EQ(run.resume(job, 1), -1);
  EXPECT_EQ(job.wrong(9), 0) << "nothing may be loaded from them";
  if (world().rank() == 0) {
    EXPECT_TRUE(log.has("; the run goes on from step 2 in memory")) << log.text();
    EXPECT_TRUE(log.has("; the run goes on from step 1 on disk")) << log.text();
  }
}

// Each rank's text is right by itself.
TEST(MemoryForgeries, RanksWhoseTextsDifferDoNotResumeFromThem) {
  if (world().size() == 1) return;
  const MemoryRun run(RemoteReplicas::off);
  const Job job(1);
  run.save(job, 3);
  MemoryRun::alone(
      [&] { forge_text(run.snapshots_of(3).back(), [](json& text) { text["tokens"] = 31; }); });
  const CapturedLog log;
  EXPECT_EQ(run.resume(job), 2);
  if (world().rank() == 0) {
    EXPECT_TRUE(log.has("its JSON differs from that of ")) << log.text();
  }
}

}  // namespace
}  // namespace llamesh::test
