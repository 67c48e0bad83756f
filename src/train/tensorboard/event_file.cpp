#include "train/tensorboard/event_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <isa-l/crc.h>

#include <protozero/pbf_builder.hpp>

#include <algorithm>
#include <bit>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

#include "core/clock.hpp"
#include "core/process.hpp"
#include "train/records/step_quantities.hpp"
#include "train/tensorboard/event_fields.hpp"

namespace llamesh::train {
namespace {

using tensorboard::Event;
using tensorboard::SessionLog;
using tensorboard::SourceMetadata;
using tensorboard::Summary;
using tensorboard::Value;

constexpr std::string_view name_begin = "events.out.tfevents.";

/// Returns the CRC32C, masked as in TFRecord (tensorflow/core/lib/hash/crc32c.h).
std::uint32_t masked_crc(std::string_view data) {
  std::string bytes(data);  // the library's parameter is not const
  const auto crc = ~crc32_iscsi(reinterpret_cast<unsigned char*>(bytes.data()),
                                static_cast<int>(bytes.size()), ~0U);
  return std::rotr(crc, 15) + 0xa282ead8U;
}

template <class Integer>
std::string little_endian(Integer value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(value); ++i)
    bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
  return bytes;
}

/// Returns the time in a file's name, or 0.
std::int64_t time_of(const std::string& name) {
  std::int64_t time = 0;
  if (name.starts_with(name_begin))
    std::from_chars(name.data() + name_begin.size(), name.data() + name.size(), time);
  return time;
}

/// Returns a name that sorts after those from earlier launches, even in the same second or from a
/// node whose clock is ahead: TensorBoard reads a folder's files in name order.
std::filesystem::path next_name(const std::filesystem::path& folder) {
  auto time = static_cast<std::int64_t>(unix_time());
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const auto former = time_of(entry.path().filename().string());
    if (former < 9'999'999'999) time = std::max(time, former + 1);
  }
  return folder / fmt::format("{}{:010}.{}", name_begin, time, this_process().host);
}

Descriptor open_next(const std::filesystem::path& folder) {
  make_folder(folder);
  return Descriptor::to_write(next_name(folder), O_WRONLY | O_CREAT | O_EXCL | O_APPEND);
}

/// Builds an event record, completed by `add`.
template <class Add>
std::string event_of(std::int64_t step, const Add& add) {
  std::string bytes;
  protozero::pbf_builder<Event> event(bytes);
  event.add_double(Event::wall_time, unix_time());
  event.add_int64(Event::step, step);
  add(event);
  return to_record(bytes);
}

/// Scalars of a step by tag.
struct Scalars {
  void add(const std::string& tag, double value) { by_tag[tag] = value; }
  void add(const std::string& tag, std::int64_t count) { add(tag, static_cast<double>(count)); }
  template <class T>
  void add(const std::string& tag, const std::optional<T>& value) {
    if (value) add(tag, *value);
  }
  template <class T>
  void add(const std::string& tag, const std::map<std::string, T>& by_axis) {
    for (const auto& [axis, value] : by_axis) add(fmt::format("{}/{}", tag, axis), value);
  }
  void add(const std::string& tag, const ExpertBalance& experts) {
    add(tag + "/z_loss", experts.z_loss);
    for (const auto& [name, member] : expert_loads) {
      add(fmt::format("{}/{}", tag, name), experts.all.*member);
      for (const auto& [layer, loads] : experts.layers)
        add(fmt::format("{}_by_layer/{}/{}", tag, name, layer), loads.*member);
    }
  }

  std::map<std::string, double> by_tag = {};
};

}  // namespace

std::string to_record(std::string_view data) {
  const auto length = little_endian(std::uint64_t{data.size()});
  std::string record = length + little_endian(masked_crc(length));
  record += data;
  return record + little_endian(masked_crc(data));
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t step)
    : file_(open_next(folder)) {
  file_.append(event_of(step + 1, [](auto& event) {
    event.add_string(Event::file_version, "brain.Event:2");
    protozero::pbf_builder<SourceMetadata>(event, Event::source_metadata)
        .add_string(SourceMetadata::writer, "llamesh");
  }));
  file_.append(event_of(step + 1, [](auto& event) {
    protozero::pbf_builder<SessionLog>(event, Event::session_log)
        .add_enum(SessionLog::status, tensorboard::session_start);
  }));
}

void EventFile::write(std::int64_t step, const std::map<std::string, double>& scalars) {
  file_.append(event_of(step, [&](auto& event) {
    protozero::pbf_builder<Summary> summary(event, Event::summary);
    for (const auto& [tag, number] : scalars) {
      protozero::pbf_builder<Value> value(summary, Summary::value);
      value.add_string(Value::tag, tag);
      value.add_float(Value::simple_value, static_cast<float>(number));
    }
  }));
}

void EventFile::write(const StepRecord& record) {
  Scalars scalars;
  for_each_quantity([&](const auto& quantity) {
    if (quantity.tag != nullptr) scalars.add(quantity.tag, record.*quantity.member);
  });
  write(record.step, scalars.by_tag);
}

void EventFile::write_validation(const StepRecord& record, const std::string& set) {
  constexpr std::string_view of_steps = "train/";
  Scalars scalars;
  for_each_quantity([&](const auto& quantity) {
    if (quantity.measured != Measured::in_validation_too) return;
    std::string_view tag = quantity.tag;
    if (tag.starts_with(of_steps)) tag.remove_prefix(of_steps.size());
    const auto of_set = set == default_validation_set ? "" : "/" + set;
    scalars.add(fmt::format("validation/{}{}", tag, of_set), record.*quantity.member);
  });
  write(record.step, scalars.by_tag);
}

}  // namespace llamesh::train
