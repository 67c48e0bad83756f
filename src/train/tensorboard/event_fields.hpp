#pragma once

#include <protozero/types.hpp>

/// Record fields that llamesh writes into event files, with TensorFlow's numbers
/// (tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto).
namespace llamesh::train::tensorboard {

enum class Event : protozero::pbf_tag_type {
  wall_time = 1,     ///< double, seconds since 1970
  step = 2,          ///< int64
  file_version = 3,  ///< string, in a file's first event
  summary = 5,
  session_log = 7,
  source_metadata = 10,
};

enum class Summary : protozero::pbf_tag_type { value = 1 /* repeated */ };

enum class Value : protozero::pbf_tag_type {
  tag = 1,           ///< string, "train/loss"
  simple_value = 2,  ///< float
};

/// `status` START (1): readers drop existing data for the event's step and later ones.
enum class SessionLog : protozero::pbf_tag_type { status = 1 };
constexpr int session_start = 1;

enum class SourceMetadata : protozero::pbf_tag_type { writer = 1 };

}  // namespace llamesh::train::tensorboard
