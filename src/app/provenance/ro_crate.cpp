#include "app/provenance/ro_crate.hpp"

#include <fmt/format.h>

#include <set>
#include <utility>

namespace llamesh::app {
namespace {

constexpr const char* crate_version = "https://w3id.org/ro/crate/1.1";
constexpr const char* process_profile = "https://w3id.org/ro/wfrun/process/0.5";
constexpr const char* no_license = "https://spdx.org/rdf/terms/#noassertion";

Json link_to(const std::string& id) {
  return {{"@id", id}};
}

std::string id_of_launch(std::size_t i) {
  return fmt::format("#launch-{}", i + 1);
}

std::string id_of_source(std::size_t i) {
  return fmt::format("#source-{}", i + 1);
}

std::string id_of_software(const LaunchFacts& launch) {
  auto id = "#llamesh-" + percent_encoded(launch.version.empty() ? "unknown" : launch.version);
  if (!launch.commit.empty()) id += '-' + percent_encoded(launch.commit);
  return id;
}

/// A crate's entities in their order, each @id once.
class Graph {
 public:
  explicit Graph(std::string prefix) : prefix_(std::move(prefix)) {}

  /// Adds an entity. As RO-Crate recommends, a list with one item becomes that item.
  void add(Json entity) {
    for (auto at = entity.begin(); at != entity.end();)
      if (!at->is_array() || at->size() > 1) {
        ++at;
      } else if (at->empty()) {
        at = entity.erase(at);
      } else {
        *at = Json(at->front());
        ++at;
      }
    if (ids_.insert(entity["@id"].get<std::string>()).second)
      entities_.push_back(std::move(entity));
  }
  /// Adds a PropertyValue; returns a reference to it.
  Json add_value(const std::string& id, const std::string& name, const Json& value,
                 const std::string& unit = "") {
    Json entity = {{"@id", id}, {"@type", "PropertyValue"}, {"name", name}, {"value", value}};
    if (!unit.empty()) entity["unitText"] = unit;
    add(std::move(entity));
    return link_to(id);
  }
  /// Adds an identifier; returns a reference to it.
  Json add_hash(const std::string& owner, const std::string& kind, const std::string& hash) {
    const auto id = "#hash-" + owner;
    add({{"@id", id},
         {"@type", "PropertyValue"},
         {"name", kind},
         {"propertyID", kind},
         {"value", hash}});
    return link_to(id);
  }
  /// Returns the @id for a path in the run folder.
  std::string in_run(const std::string& path) const { return prefix_ + path; }
  std::string checkpoint(const KeptCheckpoint& kept) const {
    return in_run("checkpoints/" + kept.name + '/');
  }
  Json take() { return std::move(entities_); }

 private:
  std::string prefix_;
  std::set<std::string> ids_;
  Json entities_ = Json::array();
};

/// Adds all losses, named after their sets; returns references to them.
Json add_losses(Graph& graph, const std::string& owner, const std::vector<SetLoss>& losses) {
  Json refs = Json::array();
  for (const auto& [set, at] : losses)
    refs.push_back(graph.add_value(fmt::format("{}-loss-{}", owner, refs.size() + 1),
                                   fmt::format("loss of {} after step {}", set, at.step), at.loss,
                                   "nats per token"));
  return refs;
}

void add_file(Graph& graph, const RunFile& file, const std::string& config_hash) {
  Json entity = {{"@id", graph.in_run(file.name)},
                 {"@type", "File"},
                 {"name", file.name},
                 {"description", file.description},
                 {"encodingFormat", file.media_type},
                 {"contentSize", fmt::format("{}", file.bytes)}};
  if (file.name == "config.yaml" && !config_hash.empty())
    entity["identifier"] = graph.add_hash("config", "XXH3-64", config_hash);
  graph.add(std::move(entity));
}

/// Adds the two files in a checkpoint.
void add_checkpoint_files(Graph& graph, const KeptCheckpoint& kept) {
  const auto folder = graph.checkpoint(kept);
  graph.add({{"@id", folder + "state.h5"},
             {"@type", "File"},
             {"name", "state.h5"},
             {"description", "weights and optimizer state"},
             {"encodingFormat", "application/x-hdf5"},
             {"contentSize", fmt::format("{}", kept.state_bytes)}});
  graph.add({{"@id", folder + "manifest.json"},
             {"@type", "File"},
             {"name", "manifest.json"},
             {"description", "the hashes of state.h5, and the training state"},
             {"encodingFormat", "application/json"},
             {"identifier", graph.add_hash(kept.name, "XXH3-64", kept.manifest_hash)}});
}

void add_checkpoint(Graph& graph, const KeptCheckpoint& kept) {
  const auto id = graph.checkpoint(kept);
  const auto value_id = "#" + kept.name;
  Json values = Json::array();
  values.push_back(graph.add_value(value_id + "-step", "step", kept.step));
  values.push_back(graph.add_value(value_id + "-tokens", "tokens", kept.tokens));
  if (!kept.mesh.empty()) values.push_back(graph.add_value(value_id + "-mesh", "mesh", kept.mesh));
  if (!kept.strategy.empty())
    values.push_back(graph.add_value(value_id + "-strategy", "strategy", kept.strategy));
  for (auto& loss : add_losses(graph, value_id, kept.validation)) values.push_back(loss);
  graph.add({{"@id", id},
             {"@type", "Dataset"},
             {"name", kept.name},
             {"description", fmt::format("Checkpoint after step {}{}", kept.step,
                                         kept.best ? ", the best by validation loss" : "")},
             {"hasPart", {link_to(id + "state.h5"), link_to(id + "manifest.json")}},
             {"variableMeasured", std::move(values)}});
  add_checkpoint_files(graph, kept);
}

std::string id_of_license(const License& license) {
  return "#license-" + percent_encoded(license.stated_in, "/");
}

void add_license(Graph& graph, const License& license) {
  graph.add({{"@id", id_of_license(license)},
             {"@type", "CreativeWork"},
             {"name", license.name},
             {"description", "As stated in " + license.stated_in}});
}

/// Adds an input from outside the run folder.
void add_source(Graph& graph, std::size_t i, const RunSource& source) {
  Json entity = {{"@id", id_of_source(i)},
                 {"@type", "CreativeWork"},
                 {"name", source.path},
                 {"description", name_of(source.kind)}};
  if (source.bytes) entity["contentSize"] = fmt::format("{}", *source.bytes);
  if (source.tokens)
    entity["size"] =
        graph.add_value(id_of_source(i) + "-tokens", "tokens", *source.tokens, "tokens");
  if (!source.hash.empty())
    entity["identifier"] =
        graph.add_hash(fmt::format("source-{}", i + 1), hash_name(source.kind), source.hash);
  if (source.license) {
    entity["license"] = link_to(id_of_license(*source.license));
    add_license(graph, *source.license);
  }
  graph.add(std::move(entity));
}

void add_software(Graph& graph, const LaunchFacts& launch) {
  Json entity = {{"@id", id_of_software(launch)},
                 {"@type", "SoftwareApplication"},
                 {"name", "llamesh"},
                 {"description", "Trains Llama-class models over an MPI device mesh"}};
  if (!launch.version.empty()) entity["softwareVersion"] = launch.version;
  if (!launch.commit.empty())
    entity["identifier"] =
        graph.add_hash(id_of_software(launch).substr(1), "git commit", launch.commit);
  graph.add(std::move(entity));
}

/// Returns references to what a launch started from and ran on.
Json objects_of(Graph& graph, const RunFacts& facts, const LaunchFacts& launch,
                const std::string& id) {
  Json objects = Json::array();
  if (launch.has_config) objects.push_back(link_to(graph.in_run("config.yaml")));
  for (const auto i : launch.used) objects.push_back(link_to(id_of_source(i)));
  if (launch.resumed_from)
    objects.push_back(link_to(graph.checkpoint(facts.checkpoints[*launch.resumed_from])));
  const auto add = [&](const char* name, const std::string& label, const std::string& value) {
    if (!value.empty()) objects.push_back(graph.add_value(id + '-' + name, label, value));
  };
  add("weights", "initial weights", launch.weights);
  add("mesh", "mesh", launch.mesh);
  if (launch.ranks) objects.push_back(graph.add_value(id + "-ranks", "ranks", *launch.ranks));
  add("host", "host of rank 0", launch.host);
  add("job", "Slurm job", launch.job);
  return objects;
}

/// Returns references to what a launch made.
Json results_of(Graph& graph, const RunFacts& facts, std::size_t index, const std::string& id) {
  const auto& launch = facts.launches[index];
  Json results = Json::array();
  for (const auto& kept : facts.checkpoints)
    if (kept.launch == index) results.push_back(link_to(graph.checkpoint(kept)));
  for (const auto& file : facts.files)
    if (file.name == "metrics.jsonl" || file.name == "log.txt")
      results.push_back(link_to(graph.in_run(file.name)));
  results.push_back(
      graph.add_value(id + "-first-step", "step before the launch", launch.first_step));
  results.push_back(graph.add_value(id + "-last-step", "last step", launch.last_step));
  for (auto& loss : add_losses(graph, id, launch.validation)) results.push_back(loss);
  if (launch.joules)
    results.push_back(
        graph.add_value(id + "-energy", "energy of these steps", *launch.joules / 3.6e6, "kWh"));
  return results;
}

void add_launch(Graph& graph, const RunFacts& facts, std::size_t index) {
  const auto& launch = facts.launches[index];
  const auto id = id_of_launch(index);
  Json action = {{"@id", id},
                 {"@type", "CreateAction"},
                 {"name", fmt::format("Launch {} of {}", index + 1, facts.name)},
                 {"description", fmt::format("Training from step {} to step {}", launch.first_step,
                                             launch.last_step)}};
  if (launch.started) action["startTime"] = iso_time(*launch.started);
  if (launch.ended && launch.last_record) action["endTime"] = iso_time(*launch.last_record);
  action["instrument"] = link_to(id_of_software(launch));
  action["object"] = objects_of(graph, facts, launch, id);
  action["result"] = results_of(graph, facts, index, id);
  add_software(graph, launch);
  graph.add(std::move(action));
}

std::string run_description(const RunFacts& facts) {
  auto text = fmt::format("Training run by llamesh, after step {}", facts.step);
  if (facts.steps) text += fmt::format(" of {}", *facts.steps);
  return facts.phase.empty() ? text : text + ", " + facts.phase;
}

/// Returns references to the root's parts in the run folder.
Json parts_of(const Graph& graph, const RunFacts& facts) {
  Json parts = Json::array();
  for (const auto& file : facts.files) parts.push_back(link_to(graph.in_run(file.name)));
  for (const auto& kept : facts.checkpoints) parts.push_back(link_to(graph.checkpoint(kept)));
  parts.push_back(link_to("provenance.json"));
  return parts;
}

/// Adds the results' license, which only their owner can state.
std::string add_own_license(Graph& graph, const std::string& license) {
  if (license.empty()) {
    graph.add({{"@id", no_license},
               {"@type", "CreativeWork"},
               {"name", "NOASSERTION"},
               {"description", "The run's records state no license"}});
    return no_license;
  }
  auto id = license.find("://") == license.npos ? "#license" : license;
  graph.add({{"@id", id},
             {"@type", "CreativeWork"},
             {"name", license},
             {"description", "License of the run's results, as given to llamesh provenance"}});
  return id;
}

void add_root(Graph& graph, const RunFacts& facts, const std::string& license) {
  Json values = Json::array(), launches = Json::array();
  values.push_back(graph.add_value("#steps", "steps", facts.step));
  if (facts.joules)
    values.push_back(graph.add_value("#energy", "energy of all launches, as far as measured",
                                     *facts.joules / 3.6e6, "kWh"));
  for (std::size_t i = 0; i < facts.launches.size(); ++i)
    launches.push_back(link_to(id_of_launch(i)));
  graph.add({{"@id", "./"},
             {"@type", "Dataset"},
             {"name", facts.name},
             {"description", run_description(facts)},
             {"datePublished", iso_time(facts.last_record)},
             {"license", link_to(add_own_license(graph, license))},
             {"conformsTo", link_to(process_profile)},
             {"hasPart", parts_of(graph, facts)},
             {"mentions", std::move(launches)},
             {"variableMeasured", std::move(values)}});
}

/// Adds the entities that make the document a crate.
void add_descriptor(Graph& graph) {
  graph.add({{"@id", "ro-crate-metadata.json"},
             {"@type", "CreativeWork"},
             {"description", crate_mark},
             {"conformsTo", link_to(crate_version)},
             {"about", link_to("./")}});
  graph.add({{"@id", process_profile},
             {"@type", "CreativeWork"},
             {"name", "Process Run Crate"},
             {"version", "0.5"}});
  graph.add({{"@id", "provenance.json"},
             {"@type", "File"},
             {"name", "provenance.json"},
             {"description", "the same facts in W3C PROV-JSON"},
             {"encodingFormat", "application/json"}});
}

}  // namespace

Json ro_crate(const RunFacts& facts, const std::string& license, const std::string& prefix) {
  Graph graph(prefix);
  add_descriptor(graph);
  add_root(graph, facts, license);
  for (const auto& file : facts.files) add_file(graph, file, facts.config_hash);
  for (const auto& kept : facts.checkpoints) add_checkpoint(graph, kept);
  for (std::size_t i = 0; i < facts.sources.all().size(); ++i)
    add_source(graph, i, facts.sources.all()[i]);
  for (std::size_t i = 0; i < facts.launches.size(); ++i) add_launch(graph, facts, i);
  return {{"@context", std::string(crate_version) + "/context"}, {"@graph", graph.take()}};
}

}  // namespace llamesh::app
