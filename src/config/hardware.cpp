#include "config/hardware.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <span>
#include <utility>

#include "config/key_reader.hpp"
#include "config/key_writer.hpp"
#include "core/error.hpp"
#include "core/file.hpp"
#include "core/text.hpp"

namespace llamesh::config {
namespace {

/// Reads numbers that must be there.
class RateReader {
 public:
  RateReader(const Node& root, const std::string& name) : reader_(root), name_(name) {}

  template <class Body>
  void section(const std::string& name, Body body) {
    section_ = name;
    reader_.section(name, body);
  }
  /// Reads a rate per second, or bytes, within limits that keep the numbers of a plan finite.
  void rate(const std::string& name, double& value, Range range = from_to(1, 1e24)) {
    value = -1;
    reader_.key(name, value, range);
    if (value < 0 && missing_.empty()) missing_ = section_ + '.' + name;
  }
  void bytes(const std::string& name, double& value) {
    std::int64_t size = -1;
    reader_.bytes(name, size);
    validate(size != 0, "{}: {}.{} is 0; it must be positive", name_, section_, name);
    value = static_cast<double>(size);
    if (size < 0 && missing_.empty()) missing_ = section_ + '.' + name;
  }
  void share(const std::string& name, double& value) { rate(name, value, from_to(1e-6, 1)); }
  void seconds(const std::string& name, double& value) { rate(name, value, from_to(0, 3600)); }
  KeyReader& reader() { return reader_; }
  /// Throws for an unknown key, else for a missing one, which may be the same misspelt.
  void finish() const {
    reader_.finish();
    validate(missing_.empty(),
             "{}: {} is missing; see inputs/hardware for the keys that are needed", name_,
             missing_);
  }

 private:
  KeyReader reader_;
  const std::string& name_;
  std::string section_;
  std::string missing_;  ///< the first one
};

constexpr const char* kernel_names[] = {
#define LLAMESH_KERNEL(name) #name,
#include "ops/kernels.inc"
#undef LLAMESH_KERNEL
};
/// As in comm::CollectiveCall::kind.
constexpr const char* collective_kinds[] = {"all-gather", "reduce-scatter", "all-reduce",
                                            "all-to-all"};

/// Reads or writes the tables of each dtype; absent ones stay absent.
template <class Io>
void tables_by_dtype(Io& io, const char* section, std::span<const char* const> names,
                     std::map<DType, device::RateTables>& tables) {
  io.section(section, [&] {
    for (const DType dtype : {DType::f32, DType::bf16})
      io.section(name_of(dtype), [&] {
        for (const char* name : names) {
          auto points = tables[dtype][name].points;
          io.pairs(name, points, from_to(1, 1e24));
          if (points.empty())
            tables[dtype].erase(name);
          else
            tables[dtype][name].points = std::move(points);
        }
      });
    std::erase_if(tables, [](const auto& entry) { return entry.second.empty(); });
  });
}

template <class Io>
void measured_keys(Io& io, device::MeasuredRates& measured) {
  io.section("measured", [&] {
    io.key("ranks", measured.ranks, from_to(1, 1 << 16));
    io.key("disk", measured.disk, from_to(1, 1e24));
    tables_by_dtype(io, "kernels", kernel_names, measured.kernels);
    tables_by_dtype(io, "within_node", collective_kinds, measured.within_node);
    tables_by_dtype(io, "between_nodes", collective_kinds, measured.between_nodes);
  });
}

device::Hardware parse_hardware(const std::string& text, const std::string& name) {
  const Node root = parse_tree(text, name);
  validate(root.kind == Node::Kind::map, "{}: expected groups of keys, got {}", root.where,
           root.describe());
  device::Hardware hardware;
  hardware.name = name;
  RateReader in(root, name);
  in.reader().key("name", hardware.name);
  validate(printable(hardware.name) == hardware.name,
           "{}: name: '{}' contains a newline or another control character; remove it",
           printable(name), printable(hardware.name));
  std::string kind = "cuda";
  in.reader().key("kind", kind);
  validate(kind == "cuda" || kind == "cpu", "{}: kind is {}; give cuda or cpu", name,
           excerpt(kind));
  hardware.kind = kind == "cpu" ? device::Kind::cpu : device::Kind::cuda;
  in.reader().key("cores", hardware.threads, from_to(1, 1 << 16));
  in.reader().key("attained", hardware.attained, from_to(1e-6, 1));
  double attainable = 0;
  in.section("memory", [&] {
    in.bytes("bytes", hardware.memory_bytes);
    in.rate("bandwidth", hardware.memory_bandwidth);
    in.share("attainable", attainable);
  });
  hardware.memory_bandwidth *= attainable;
  hardware.host_memory_bytes = hardware.memory_bytes;  // a CPU's own
  hardware.host_bandwidth = hardware.memory_bandwidth;
  hardware.host_link = hardware.memory_bandwidth / 2;  // a copy reads and writes
  if (hardware.kind == device::Kind::cuda)
    in.section("host", [&] {
      in.bytes("bytes", hardware.host_memory_bytes);
      in.rate("bandwidth", hardware.host_bandwidth);
      in.rate("link", hardware.host_link);
    });
  in.section("peak", [&] {
    in.rate("bf16", hardware.peak_bf16);
    in.rate("fp32", hardware.peak_fp32);
    in.reader().key("fp8", hardware.peak_fp8, from_to(1, 1e24));
  });
  in.section("attainable", [&] {
    in.share("gemm", hardware.gemm_share);
    in.share("attention_forward", hardware.attention_forward_share);
    in.share("attention_backward", hardware.attention_backward_share);
  });
  in.section("latency", [&] {
    in.seconds("launch", hardware.launch_seconds);
    in.seconds("collective", hardware.collective_seconds);
  });
  const auto link = [&](const char* section, device::LinkRate& rate) {
    in.section(section, [&] {
      in.rate("bandwidth", rate.bandwidth);
      in.seconds("latency", rate.latency);
    });
  };
  link("within_node", hardware.within_node);
  link("between_nodes", hardware.between_nodes);
  measured_keys(in.reader(), hardware.measured);
  const Node* measured = root.find("measured");
  if (measured != nullptr) {
    validate(hardware.is_measured(),
             "{}: measured.ranks is missing; measure again with llamesh bench hardware",
             measured->where);
    validate(hardware.kind == device::Kind::cpu,
             "{}: measured rates are for kind: cpu; set it, or remove them", measured->where);
  }
  in.finish();
  return hardware;
}

}  // namespace

std::string hardware_text(const device::Hardware& hardware) {
  KeyWriter out;
  auto measured = hardware.measured;
  out.key("name", hardware.name);
  out.key("kind", std::string("cpu"));
  out.key("cores", hardware.threads, {});
  const auto section = [&](const char* name,
                           std::initializer_list<std::pair<const char*, double>> keys) {
    out.section(name, [&] {
      for (const auto& [key, value] : keys) out.key(key, value, {});
    });
  };
  section("memory", {{"bytes", hardware.memory_bytes},
                     {"bandwidth", hardware.memory_bandwidth},
                     {"attainable", 1}});
  section("peak", {{"bf16", hardware.peak_bf16}, {"fp32", hardware.peak_fp32}});
  section("attainable", {{"gemm", hardware.gemm_share},
                         {"attention_forward", hardware.attention_forward_share},
                         {"attention_backward", hardware.attention_backward_share}});
  section("latency",
          {{"launch", hardware.launch_seconds}, {"collective", hardware.collective_seconds}});
  for (const auto& [name, link] : {std::pair("within_node", &hardware.within_node),
                                   std::pair("between_nodes", &hardware.between_nodes)})
    section(name, {{"bandwidth", link->bandwidth}, {"latency", link->latency}});
  measured_keys(out, measured);
  return out.text();
}

std::vector<std::string> built_in_hardware() {
  std::vector<std::string> names;
  for (const auto& file : hardware_files) names.emplace_back(file.name);
  return names;
}

device::Hardware load_hardware(const std::string& name) {
  const auto* found = std::ranges::find(hardware_files, name, &HardwareFile::name);
  if (found != std::end(hardware_files)) return parse_hardware(found->text, name);
  std::error_code ignored;
  validate(std::filesystem::is_regular_file(name, ignored),
           "--hardware {}: neither a file nor one of {}{}", name,
           fmt::join(built_in_hardware(), ", "), did_you_mean(name, built_in_hardware()));
  return parse_hardware(read_yaml_file(name), name);
}

}  // namespace llamesh::config
