#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "app/commands/commands.hpp"
#include "app/provenance/run_facts.hpp"
#include "captured_log.hpp"
#include "checkpoint/fixture.hpp"
#include "config/inputs.hpp"
#include "core/file.hpp"
#include "core/hash.hpp"
#include "data/fingerprint.hpp"
#include "support.hpp"
#include "temporary_folder.hpp"
#include "train/records/run_state.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;
using train::RunPhase;

constexpr double begin = 1795935000;  // 2026-11-29T06:50:00

std::string metric(int step, const std::string& more = "") {
  return fmt::format(R"({{"step":{},"loss":4.5,"seconds":0.5,"joules":1800,"time":{}{}}})"
                     "\n",
                     step, begin + step, more);
}

std::string happens(const std::string& event, int step, const std::string& more) {
  return fmt::format(R"({{"event":"{}","step":{},{}}})"
                     "\n",
                     event, step, more);
}

std::string launch_line(const std::string& event, int step, const std::string& detail,
                        const std::string& more) {
  return happens(event, step,
                 fmt::format(R"("detail":"{}","time":{},"ranks":2,"mesh":"shard=2","host":"n1",)"
                             R"("version":"0.1.0"{})",
                             detail, begin + step, more));
}

/// A run folder with two launches: the first trains from 0 to 20, the second from 20 to 30.
class Provenance : public testing::Test {
 protected:
  Provenance() {
    fs::create_directories(run_);
    fs::create_directories(temporary_.path() / "corpus");
    fs::create_directories(temporary_.path() / "hf");
    write("corpus/a.txt", "some text");
    write("corpus/README.md", "---\nlicense: cc-by-4.0\ntags: [a]\n---\n# Corpus\n");
    write("hf/LICENSE", "free");
    fs::last_write_time(text_, fs::last_write_time(text_) - std::chrono::hours(24 * 20000));
  }

  std::string write(const std::string& name, const std::string& text) {
    return temporary_.write(name, text);
  }
  std::string config(int steps) const {
    config::Inputs in;
    in.run.name = "tiny run";
    in.run.folder = run_.string();
    in.train.steps = steps;
    in.data.train = {text_};
    in.data.validation = {text_};
    in.pretrained.hf = hf_;
    in.checkpoint.resume = resume_;
    return config::to_yaml(in);
  }
  std::string fingerprint() const {
    data::Fingerprint known;
    known.tokenizer = "byte";
    known.sources = {{{text_, 9, 0xabcU}}};
    return data::to_text(known);
  }
  /// Writes a checkpoint for each step, with its launch's inputs.
  void save(const std::map<int, int>& total_steps_by_step) const {
    const test::Job job(1);
    job.fill(1);
    checkpoint::Store store(run_ / "checkpoints", {.keep = 9}, test::world());
    for (const auto& [step, total] : total_steps_by_step) {
      auto state = test::progress(step);
      state.config = config(total);
      state.data = fingerprint();
      if (base_hash_ != 0) state.base = {hf_, base_hash_};
      store.save(job.state(), state);
    }
  }
  void write_records() {
    write("run/config.yaml", config(30));
    write("run/log.txt", "log\n");
    write("run/metrics.jsonl",
          launch_line("start", 0, "the weights of " + hf_, R"(,"commit":"abc123","job":"77")") +
              metric(10) + happens("validation", 10, R"("loss":4.25)") + metric(20) +
              launch_line("resume", 20, "shard=2", "") + metric(30) +
              happens("validation", 30, R"("loss":4.0)") +
              happens("checkpoint", 30, fmt::format(R"("time":{})", begin + 31.5)));
    train::write_run_state(run_, {.phase = RunPhase::done,
                                  .step = 30,
                                  .starts = 2,
                                  .steps = 30,
                                  .joules = 3.6e6,
                                  .best = {{30, 4.0}}});
  }
  void write_whole_run() {
    write_records();
    save({{10, 20}, {20, 20}, {30, 30}});
  }

  int describe(const fs::path& run, const fs::path& to = "", const std::string& license = "",
               Existing existing = Existing::refuse) {
    testing::internal::CaptureStdout();
    const int code = provenance(run.string(), to.string(), license, existing);
    printed_ = testing::internal::GetCapturedStdout();
    return code;
  }
  static Json json_in(const fs::path& file) { return Json::parse(read_file(file, 1 << 24)); }
  Json crate() const { return json_in(run_ / "ro-crate-metadata.json"); }
  Json prov() const { return json_in(run_ / "provenance.json"); }

  test::TemporaryFolder temporary_;
  const fs::path run_ = temporary_.path() / "run";
  const std::string text_ = temporary_.path("corpus/a.txt"), hf_ = temporary_.path("hf");
  std::string printed_, resume_ = "auto";
  std::uint64_t base_hash_ = 0;  ///< hash for the base model in the checkpoints; 0: none
};

/// Returns the entity with this @id; null if there is none.
Json entity(const Json& crate, const std::string& id) {
  for (const auto& one : crate["@graph"])
    if (one["@id"] == id) return one;
  return nullptr;
}

/// Returns all @id to which a property refers.
std::set<std::string> linked(const Json& entity, const std::string& property) {
  std::set<std::string> ids;
  const Json& value = entity.at(property);
  for (const auto& one : value.is_array() ? value : Json::array({value})) ids.insert(one["@id"]);
  return ids;
}

/// Returns "from > to" for all relations with this name.
std::set<std::string> related(const Json& prov, const std::string& kind, const std::string& from,
                              const std::string& to) {
  std::set<std::string> pairs;
  for (const auto& [id, relation] : prov[kind].items())
    pairs.insert(relation["prov:" + from].get<std::string>().substr(4) + " > " +
                 relation["prov:" + to].get<std::string>().substr(4));
  return pairs;
}

/// Checks that every @id that is referred to is an entity, apart from the specification.
void expect_closed(const Json& crate) {
  for (const auto& one : crate["@graph"])
    for (const auto& [key, value] : one.items())
      for (const auto& item : value.is_array() ? value : Json::array({value}))
        if (item.is_object() && item["@id"] != "https://w3id.org/ro/crate/1.1") {
          EXPECT_FALSE(entity(crate, item["@id"]).is_null()) << item["@id"];
        }
}

TEST_F(Provenance, TheCrateDescribesTheRunAndItsLaunches) {
  write_whole_run();
  EXPECT_EQ(describe(run_), 0);
  EXPECT_EQ(printed_, (run_ / "ro-crate-metadata.json").string() + '\n' +
                          (run_ / "provenance.json").string() + '\n');
  auto document = crate();
  EXPECT_EQ(document["@context"], "https://w3id.org/ro/crate/1.1/context");
  expect_closed(document);
  auto root = entity(document, "./");
  EXPECT_EQ(root["name"], "tiny run");
  EXPECT_EQ(root["description"], "Training run by llamesh, after step 30 of 30, done");
  EXPECT_EQ(root["datePublished"], "2026-11-29T06:50:31.500+00:00");
  EXPECT_EQ(root["license"]["@id"], "https://spdx.org/rdf/terms/#noassertion");
  EXPECT_EQ(linked(root, "hasPart"),
            (std::set<std::string>{"config.yaml", "metrics.jsonl", "log.txt", "state.json",
                                   "checkpoints/step_00000010/", "checkpoints/step_00000020/",
                                   "checkpoints/step_00000030/", "provenance.json"}));
  EXPECT_EQ(linked(root, "mentions"), (std::set<std::string>{"#launch-1", "#launch-2"}));
  EXPECT_EQ(entity(document, "#energy")["value"], 1.0);
  EXPECT_EQ(entity(document, "#energy")["unitText"], "kWh");

  auto first = entity(document, "#launch-1"), second = entity(document, "#launch-2");
  EXPECT_EQ(first["startTime"], "2026-11-29T06:50:00.000+00:00");
  EXPECT_EQ(first["endTime"], "2026-11-29T06:50:20.000+00:00");
  EXPECT_EQ(second["endTime"], "2026-11-29T06:50:31.500+00:00");
  EXPECT_EQ(first["instrument"]["@id"], "#llamesh-0.1.0-abc123");
  EXPECT_EQ(second["instrument"]["@id"], "#llamesh-0.1.0");
  EXPECT_EQ(entity(document, "#hash-llamesh-0.1.0-abc123")["value"], "abc123");
  EXPECT_EQ(entity(document, "#launch-1-job")["value"], "77");
  EXPECT_TRUE(entity(document, "#launch-2-job").is_null()) << "unknown";
  EXPECT_EQ(entity(document, "#launch-1-energy")["value"], 0.001) << "two steps";
  EXPECT_EQ(entity(document, "#launch-2-loss-1")["value"], 4.0);
  EXPECT_TRUE(linked(first, "result").contains("checkpoints/step_00000020/"));
  EXPECT_FALSE(linked(second, "result").contains("checkpoints/step_00000020/"));
  EXPECT_TRUE(linked(second, "object").contains("checkpoints/step_00000020/"));
  EXPECT_TRUE(linked(second, "object").contains("config.yaml"));
  EXPECT_FALSE(linked(first, "object").contains("config.yaml")) << "it had other inputs";
  EXPECT_TRUE(first["agent"].is_null()) << "no record has the user";
}

TEST_F(Provenance, InputsHaveTheirSizesHashesAndLicenses) {
  write_whole_run();
  describe(run_);
  auto document = crate();
  auto data = entity(document, "#source-1"), model = entity(document, "#source-3");
  EXPECT_EQ(data["name"], text_);
  EXPECT_EQ(data["contentSize"], "9");
  EXPECT_EQ(entity(document, data["identifier"]["@id"])["value"], "0000000000000abc");
  EXPECT_EQ(entity(document, data["license"]["@id"])["name"], "cc-by-4.0");
  EXPECT_EQ(entity(document, "#source-2")["description"], "validation data");
  EXPECT_EQ(model["name"], hf_);
  EXPECT_EQ(entity(document, model["license"]["@id"])["name"], "LICENSE");
  EXPECT_TRUE(model["identifier"].is_null()) << "no checkpoint has its hash";
  const auto text = read_file(run_ / "config.yaml", 1 << 20);
  EXPECT_EQ(entity(document, "#hash-config")["value"], to_hex(hash_of(text.data(), text.size())));

  fs::last_write_time(text_, fs::file_time_type::clock::now() + std::chrono::hours(24 * 20000));
  describe(run_);
  EXPECT_TRUE(entity(crate(), "#source-1")["contentSize"].is_null()) << "changed since";
  fs::remove_all(temporary_.path() / "corpus");
  describe(run_);
  document = crate();
  EXPECT_TRUE(entity(document, "#source-1")["license"].is_null());
  EXPECT_FALSE(entity(document, "#source-1")["identifier"].is_null()) << "it is in the checkpoint";
}

TEST_F(Provenance, ProvRelatesLaunchesAndCheckpoints) {
  write_whole_run();
  describe(run_);
  const auto document = prov();
  EXPECT_EQ(document["prefix"]["run"], "urn:x-llamesh:run:tiny%20run:1795935000.000:");
  EXPECT_EQ(document["activity"]["run:launch/1"]["prov:startTime"],
            "2026-11-29T06:50:00.000+00:00");
  EXPECT_EQ(document["agent"].size(), 2U) << "one has a commit";
  EXPECT_EQ(document["entity"]["run:checkpoints/step_00000030"]["llamesh:best"], true);
  using Pairs = std::set<std::string>;
  EXPECT_EQ(related(document, "wasGeneratedBy", "entity", "activity"),
            (Pairs{"checkpoints/step_00000010 > launch/1", "checkpoints/step_00000020 > launch/1",
                   "checkpoints/step_00000030 > launch/2", "metrics.jsonl > launch/2",
                   "log.txt > launch/2"}));
  EXPECT_EQ(related(document, "wasDerivedFrom", "generatedEntity", "usedEntity"),
            (Pairs{"checkpoints/step_00000010 > source/3", "checkpoints/step_00000020 > source/3",
                   "checkpoints/step_00000030 > checkpoints/step_00000020"}));
  EXPECT_EQ(related(document, "used", "activity", "entity"),
            (Pairs{"launch/1 > source/1", "launch/1 > source/2", "launch/1 > source/3",
                   "launch/2 > source/1", "launch/2 > source/2", "launch/2 > source/3",
                   "launch/2 > config.yaml", "launch/2 > checkpoints/step_00000020"}));
  EXPECT_EQ(related(document, "wasInformedBy", "informed", "informant"),
            (Pairs{"launch/2 > launch/1"}));
  EXPECT_EQ(
      related(document, "wasAssociatedWith", "activity", "agent"),
      (Pairs{"launch/1 > software/llamesh-0.1.0-abc123", "launch/2 > software/llamesh-0.1.0"}));
}

TEST_F(Provenance, AFrozenModelHasTheHashInTheCheckpoint) {
  base_hash_ = 0xdefU;
  write_whole_run();
  describe(run_);
  auto document = crate();
  auto model = entity(document, "#source-3");
  EXPECT_EQ(entity(document, model["identifier"]["@id"])["value"], "0000000000000def");
  EXPECT_EQ(entity(document, model["identifier"]["@id"])["name"], "XXH3-64 of the frozen weights");
}

TEST_F(Provenance, ARunThatContinuesAnotherIsDerivedFromIt) {
  resume_ = "runs/other";
  write("run/config.yaml", config(30));
  write("run/metrics.jsonl", launch_line("resume", 20, "shard=2", "") + metric(30));
  save({{20, 30}, {30, 30}});
  describe(run_);
  EXPECT_EQ(prov()["entity"]["run:source/4"]["prov:label"], "runs/other");
  EXPECT_EQ(related(prov(), "wasDerivedFrom", "generatedEntity", "usedEntity"),
            (std::set<std::string>{"checkpoints/step_00000030 > source/4"}))
      << "the run's own checkpoint of step 20 was not read";
}

TEST_F(Provenance, TwiceGivesTheSameBytes) {
  write_whole_run();
  describe(run_);
  const auto first = crate().dump() + prov().dump();
  describe(run_);
  EXPECT_EQ(crate().dump() + prov().dump(), first);
}

TEST_F(Provenance, ARunThatTrainsHasNoEndYet) {
  write_records();
  train::write_run_state(run_, {.phase = RunPhase::running, .step = 20});
  write("run/metrics.jsonl", read_file(run_ / "metrics.jsonl", 1 << 20) + R"({"step":31,"lo)");
  describe(run_);
  auto document = crate();
  EXPECT_FALSE(entity(document, "#launch-1")["endTime"].is_null());
  EXPECT_TRUE(entity(document, "#launch-2")["endTime"].is_null());
  EXPECT_FALSE(prov()["activity"]["run:launch/2"].contains("prov:endTime"));
  EXPECT_EQ(entity(document, "./")["description"],
            "Training run by llamesh, after step 30, running");
}

TEST_F(Provenance, WithoutACheckpointInputsAreThoseInConfigYaml) {
  write_records();
  describe(run_);
  auto document = crate();
  expect_closed(document);
  EXPECT_EQ(entity(document, "#source-1")["name"], text_);
  EXPECT_TRUE(entity(document, "#source-1")["identifier"].is_null());
  const auto relations = prov();
  EXPECT_FALSE(relations.contains("wasDerivedFrom"));
  EXPECT_EQ(related(relations, "used", "activity", "entity"),
            (std::set<std::string>{"launch/1 > source/1", "launch/1 > source/3",
                                   "launch/2 > source/1", "launch/2 > source/2",
                                   "launch/2 > source/3", "launch/2 > config.yaml"}))
      << "the first launch's inputs are unknown, apart from data and weights";
}

TEST_F(Provenance, ADamagedCheckpointIsLeftOutWithAWarning) {
  write_whole_run();
  write("run/checkpoints/step_00000020/manifest.json", "{}");
  test::CapturedLog log;
  describe(run_);
  EXPECT_NE(log.text().find("left out: "), std::string::npos) << log.text();
  EXPECT_TRUE(entity(crate(), "checkpoints/step_00000020/").is_null());
  EXPECT_FALSE(prov().contains("wasDerivedFrom") &&
               related(prov(), "wasDerivedFrom", "generatedEntity", "usedEntity")
                   .contains("checkpoints/step_00000030 > checkpoints/step_00000020"));
}

TEST_F(Provenance, ConfigYamlFromAnotherVersionLeavesInputsToTheCheckpoint) {
  write_whole_run();
  write("run/config.yaml", "run: {name: x}\nunheard_of: 1\n");
  describe(run_);
  auto document = crate();
  EXPECT_EQ(entity(document, "./")["name"], "run") << "the folder's name";
  EXPECT_EQ(entity(document, "#source-1")["name"], text_);
}

TEST_F(Provenance, AnotherFolderRefersToTheRunByItsUri) {
  write_whole_run();
  const auto to = temporary_.path() / "with space";
  fs::create_directory(to);
  describe(run_, to, "MIT");
  auto document = json_in(to / "ro-crate-metadata.json");
  expect_closed(document);
  const auto uri = "file://" + fs::weakly_canonical(run_).string() + "/";
  EXPECT_TRUE(linked(entity(document, "./"), "hasPart").contains(uri + "config.yaml"));
  EXPECT_TRUE(linked(entity(document, "./"), "hasPart").contains("provenance.json"));
  EXPECT_EQ(entity(document, "#license")["name"], "MIT");
  EXPECT_FALSE(fs::exists(run_ / "provenance.json"));
}

TEST(ProvenanceIdentifiers, HaveNoCharacterThatAUriHasNot) {
  EXPECT_EQ(percent_encoded("a b/\xc3\xa9%#~", "/"), "a%20b/%C3%A9%25%23%7E");
  EXPECT_EQ(iso_time(0.9996), "1970-01-01T00:00:01.000+00:00");
}

TEST_F(Provenance, AHyphenPrintsBothAsOneObject) {
  write_whole_run();
  describe(run_, "-", "https://spdx.org/licenses/MIT");
  EXPECT_EQ(printed_.find('\n'), printed_.size() - 1);
  const auto both = Json::parse(printed_);
  EXPECT_EQ(entity(both["ro-crate-metadata.json"], "./")["license"]["@id"],
            "https://spdx.org/licenses/MIT");
  EXPECT_TRUE(both["provenance.json"].contains("activity"));
  EXPECT_FALSE(fs::exists(run_ / "ro-crate-metadata.json"));
}

TEST_F(Provenance, FilesOfOthersAreReplacedOnlyIfAsked) {
  write_whole_run();
  write("run/ro-crate-metadata.json", "{\"@graph\": []}");
  const auto error = test::error_of([&] { describe(run_); });
  testing::internal::GetCapturedStdout();
  EXPECT_NE(error.find("exists; choose another name, or replace the file with --force"),
            std::string::npos)
      << error;
  EXPECT_FALSE(fs::exists(run_ / "provenance.json")) << "nothing is written";
  describe(run_, "", "", Existing::replace);
  describe(run_);  // its own
}

TEST_F(Provenance, AFolderThatIsNoRunIsRefused) {
  const auto refused = [&](const fs::path& run) {
    return test::error_of([&] { read_run_facts(run); });
  };
  EXPECT_NE(refused(temporary_.path() / "absent").find("is not a folder; give a run folder"),
            std::string::npos);
  EXPECT_NE(refused(run_).find("is no run folder, since it has no metrics.jsonl"),
            std::string::npos);
  for (const char* records :
       {"", "{\"event\":\"start\",\"step\":0}\n", "{\"step\":1,\"time\":1e300}\n", "no JSON\n"}) {
    write("run/metrics.jsonl", records);
    EXPECT_NE(refused(run_).find("has no record with a time yet"), std::string::npos) << records;
  }
}

TEST(Licenses, AreThoseThatTheOwnerStates) {
  const test::TemporaryFolder folder;
  EXPECT_FALSE(license_in(folder.path()));
  EXPECT_FALSE(license_in(folder.path() / "absent"));
  const auto readme = folder.path("README.md");
  const auto name_in = [&](const std::string& text) {
    folder.write("README.md", text);
    const auto license = license_in(folder.path());
    return license ? license->name : "";
  };
  EXPECT_EQ(name_in("---\r\nlicense: mit\r\n---\r\n"), "mit");
  EXPECT_EQ(name_in("---\nlicense: [mit, apache-2.0]\n---\n"), "mit, apache-2.0");
  EXPECT_EQ(name_in("---\nlicense: other\nlicense_name: llama3\n---\n"), "llama3");
  for (const char* text : {"", "license: mit\n", "---\n---\n", "---\nlicense: mit\n",
                           "---\n{\n---\n", "---\n- license\n---\n", "---\nlicense: {a: b}\n---\n"})
    EXPECT_EQ(name_in(text), "") << text;
  folder.write("LICENSE.md", "free");
  EXPECT_EQ(name_in("# no front matter"), "LICENSE.md");
  EXPECT_EQ(license_in(folder.path())->stated_in, folder.path("LICENSE.md"));
}

}  // namespace
}  // namespace llamesh::app
