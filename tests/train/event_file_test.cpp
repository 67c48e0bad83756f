#include "train/tensorboard/event_file.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <protozero/pbf_message.hpp>
#include <sstream>
#include <vector>

#include "core/error.hpp"
#include "temporary_folder.hpp"
#include "train/tensorboard/event_fields.hpp"

namespace llamesh::train {
namespace {

namespace fs = std::filesystem;
using namespace tensorboard;

/// An event's content, as read by protozero.
struct Read {
  double wall_time = 0;
  std::int64_t step = 0;
  std::string file_version = {};
  bool is_start = false;
  std::map<std::string, float> scalars = {};
};

void read_summary(protozero::pbf_message<Summary> summary, Read& to) {
  while (summary.next(Summary::value)) {
    std::string tag;
    protozero::pbf_message<Value> value = summary.get_message();
    while (value.next())
      if (value.tag() == Value::tag)
        tag = value.get_string();
      else
        to.scalars[tag] = value.get_float();
  }
}

Read parse(std::string_view bytes) {
  Read read;
  protozero::pbf_message<Event> event(bytes.data(), bytes.size());
  while (event.next()) switch (event.tag()) {
      case Event::wall_time:
        read.wall_time = event.get_double();
        break;
      case Event::step:
        read.step = event.get_int64();
        break;
      case Event::file_version:
        read.file_version = event.get_string();
        break;
      case Event::summary:
        read_summary(event.get_message(), read);
        break;
      case Event::session_log: {
        protozero::pbf_message<SessionLog> log = event.get_message();
        read.is_start = log.next() && log.get_enum() == session_start;
        break;
      }
      default:
        event.skip();
    }
  return read;
}

template <class T>
T take(std::string_view& bytes) {
  T value;
  expects(bytes.size() >= sizeof(value), "the file ends within a record");
  std::memcpy(&value, bytes.data(), sizeof(value));
  bytes.remove_prefix(sizeof(value));
  return value;
}

/// Computes the CRC bit by bit, with RFC 3720's polynomial and TFRecord's mask.
std::uint32_t masked_crc(std::string_view bytes) {
  std::uint32_t crc = ~0U;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0U);
  }
  return std::rotr(~crc, 15) + 0xa282ead8U;
}

std::vector<Read> events_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string text = (std::ostringstream() << in.rdbuf()).str();
  std::vector<Read> events;
  for (std::string_view bytes = text; !bytes.empty();) {
    const auto head = bytes.substr(0, 8);
    const auto length = take<std::uint64_t>(bytes);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked_crc(head));
    const auto data = bytes.substr(0, length);
    bytes.remove_prefix(length);
    EXPECT_EQ(take<std::uint32_t>(bytes), masked_crc(data));
    events.push_back(parse(data));
  }
  return events;
}

/// Returns the files in TensorBoard's reading order.
std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files{fs::directory_iterator(folder), {}};
  std::ranges::sort(files);
  return files;
}

/// Returns tag -> step -> value, with restarts handled like TensorBoard.
std::map<std::string, std::map<std::int64_t, float>> shown(const fs::path& folder) {
  std::map<std::string, std::map<std::int64_t, float>> all;
  for (const auto& file : files_in(folder))
    for (const auto& event : events_of(file)) {
      if (event.is_start)
        for (auto& [tag, values] : all) values.erase(values.lower_bound(event.step), values.end());
      for (const auto& [tag, value] : event.scalars)
        EXPECT_TRUE(all[tag].emplace(event.step, value).second) << tag << " is there twice";
    }
  return all;
}

StepRecord record_of(std::int64_t step, double loss) {
  StepRecord record;
  record.step = step;
  record.loss = loss;
  return record;
}

class Events : public testing::Test {
 protected:
  test::TemporaryFolder temporary_;
  const fs::path folder_ = temporary_.path() / "tensorboard";
};

TEST_F(Events, BeginWithTheVersionAndTheStart) {
  { const EventFile file(folder_, 7); }
  ASSERT_EQ(files_in(folder_).size(), 1U);
  EXPECT_TRUE(files_in(folder_)[0].filename().string().starts_with("events.out.tfevents."));
  const auto events = events_of(files_in(folder_)[0]);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].file_version, "brain.Event:2");
  EXPECT_TRUE(events[1].is_start);
  EXPECT_EQ(events[1].step, 8);  // the first step that this launch will write
  EXPECT_GT(events[1].wall_time, 1.7e9);
}

TEST_F(Events, HoldEveryScalarByItsTag) {
  EventFile file(folder_, 0);
  file.write({.step = 3,
              .loss = 2.5,
              .grad_norm = 0.25,
              .lr = 3e-4,
              .tokens = 1000,
              .seconds = 0.5,
              .tokens_per_second = 2000,
              .mfu = 0.45,
              .allocated_after_step = 1 << 20,
              .peak = 1 << 21,
              .traffic = {{"replicate", 5}, {"shard", 6}},
              .traffic_between_nodes = {{"replicate", 4}},
              .exposed = {{"shard", 0.125}},
              .joules = 350,
              .tokens_per_joule = 2.25});
  file.write_validation({.step = 3, .loss = 2.75});
  std::map<std::string, float> found;
  for (const auto& [tag, values] : shown(folder_)) found[tag] = values.at(3);
  EXPECT_EQ(found, (std::map<std::string, float>{{"train/loss", 2.5F},
                                                 {"train/grad_norm", 0.25F},
                                                 {"train/lr", 3e-4F},
                                                 {"train/tokens", 1000},
                                                 {"speed/seconds", 0.5F},
                                                 {"speed/tokens_per_second", 2000},
                                                 {"speed/mfu", 0.45F},
                                                 {"memory/valley", 1 << 20},
                                                 {"memory/peak", 1 << 21},
                                                 {"traffic/replicate", 5},
                                                 {"traffic/shard", 6},
                                                 {"traffic_between_nodes/replicate", 4},
                                                 {"exposed/shard", 0.125F},
                                                 {"energy/joules", 350},
                                                 {"energy/tokens_per_joule", 2.25F},
                                                 {"validation/loss", 2.75F}}));
}

TEST_F(Events, HoldTheBalanceOfExperts) {
  StepRecord record;
  record.step = 3;
  record.experts = ExpertBalance{.all = {.max_load = 1.5}, .z_loss = 3.5};
  record.experts->layers[7] = {.min_load = 0.25};
  EventFile(folder_, 0).write(record);
  std::map<std::string, float> found;
  for (const auto& [tag, values] : shown(folder_))
    if (tag.starts_with("experts")) found[tag] = values.at(3);
  EXPECT_EQ(found, (std::map<std::string, float>{{"experts/max_load", 1.5F},
                                                 {"experts/min_load", 1},
                                                 {"experts/entropy", 1},
                                                 {"experts/aux_loss", 1},
                                                 {"experts/z_loss", 3.5F},
                                                 {"experts_by_layer/max_load/7", 1},
                                                 {"experts_by_layer/min_load/7", 0.25F},
                                                 {"experts_by_layer/entropy/7", 1},
                                                 {"experts_by_layer/aux_loss/7", 1}}));
}

TEST_F(Events, AreThereAtOnce) {
  EventFile file(folder_, 0);
  file.write(record_of(1, 5));
  EXPECT_EQ(shown(folder_).at("train/loss").size(), 1U);
  file.write(record_of(2, 4));
  EXPECT_EQ(shown(folder_).at("train/loss").size(), 2U);
}

TEST_F(Events, OfLaterStepsAreReplacedByAResumedRun) {
  {
    EventFile first(folder_, 0);
    for (int step = 1; step <= 5; ++step) first.write(record_of(step, 10 * step));
    first.write_validation({.step = 5, .loss = 50});
  }
  {
    EventFile second(folder_, 2);  // within the same second
    for (int step = 3; step <= 4; ++step) second.write(record_of(step, step));
  }
  EventFile third(folder_, 4);
  third.write(record_of(5, 5));
  const auto all = shown(folder_);
  EXPECT_EQ(all.at("train/loss"),
            (std::map<std::int64_t, float>{{1, 10}, {2, 20}, {3, 3}, {4, 4}, {5, 5}}));
  EXPECT_TRUE(all.at("validation/loss").empty());
}

TEST_F(Events, ComeBehindThoseOfANodeWhoseClockIsAhead) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "events.out.tfevents.99999999999999999999.x") << "no number";
  std::ofstream(folder_ / "events.out.tfevents.5000000000.node7") << "of the launch before";
  { const EventFile file(folder_, 0); }
  bool found = false;
  for (const auto& file : files_in(folder_))
    found = found || file.filename().string().starts_with("events.out.tfevents.5000000001.");
  EXPECT_TRUE(found);
}

TEST(Records, HaveTheChecksumsOfTfRecord) {
  // CRC-32C's check value, and RFC 3720's example with 32 zero bytes (B.4).
  EXPECT_EQ(masked_crc("123456789"), std::rotr(0xe3069283U, 15) + 0xa282ead8U);
  const std::string zeros(32, '\0');
  const auto record = to_record(zeros);
  ASSERT_EQ(record.size(), 12U + 32U + 4U);
  std::uint32_t stored;
  std::memcpy(&stored, record.data() + 44, 4);
  EXPECT_EQ(stored, std::rotr(0x8a9136aaU, 15) + 0xa282ead8U);
}

TEST_F(Events, AFolderThatCannotBeMadeIsAnError) {
  std::ofstream(folder_) << "a file";
  try {
    const EventFile file(folder_, 0);
    FAIL() << "no error was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::io_failure);
    EXPECT_NE(std::string(error.what()).find(folder_.string()), std::string::npos);
  }
}

}  // namespace
}  // namespace llamesh::train
