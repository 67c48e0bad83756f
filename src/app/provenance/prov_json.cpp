#include "app/provenance/prov_json.hpp"

#include <fmt/format.h>

#include <utility>

namespace llamesh::app {
namespace {

/// Returns a qualified name in the run's namespace.
std::string in_run(const std::string& name) {
  return "run:" + name;
}

std::string launch_name(std::size_t i) {
  return in_run(fmt::format("launch/{}", i + 1));
}

std::string source_name(std::size_t i) {
  return in_run(fmt::format("source/{}", i + 1));
}

std::string checkpoint_name(const KeptCheckpoint& kept) {
  return in_run("checkpoints/" + kept.name);
}

std::string software_name(const LaunchFacts& launch) {
  auto name =
      "software/llamesh-" + percent_encoded(launch.version.empty() ? "unknown" : launch.version);
  if (!launch.commit.empty()) name += '-' + percent_encoded(launch.commit);
  return in_run(name);
}

Json qualified(const char* name) {
  return {{"$", name}, {"type", "prov:QUALIFIED_NAME"}};
}

/// Appends a key that is new. The library would compare it with all others first, which takes long
/// for many files.
void append(Json& object, std::string key, Json value) {
  object.get_ref<Json::object_t&>().emplace_back(std::move(key), std::move(value));
}

/// Adds an attribute if it is known.
void set_known(Json& record, const char* key, const std::string& value) {
  if (!value.empty()) record[key] = value;
}

void add_losses_to(Json& record, const std::vector<SetLoss>& losses) {
  Json texts = Json::array();
  for (const auto& [set, at] : losses)
    texts.push_back(fmt::format("{} {} after step {}", set, at.loss, at.step));
  if (!texts.empty()) record["llamesh:validation_loss"] = std::move(texts);
}

Json file_record(const RunFile& file, const std::string& config_hash) {
  Json record = {{"prov:label", file.name},
                 {"llamesh:content", file.description},
                 {"llamesh:bytes", file.bytes}};
  if (file.name == "config.yaml") set_known(record, "llamesh:xxh3_64", config_hash);
  return record;
}

Json checkpoint_record(const KeptCheckpoint& kept) {
  Json record = {{"prov:label", "checkpoint after step " + fmt::format("{}", kept.step)},
                 {"llamesh:step", kept.step},
                 {"llamesh:tokens", kept.tokens},
                 {"llamesh:bytes", kept.state_bytes},
                 {"llamesh:manifest_xxh3_64", kept.manifest_hash}};
  set_known(record, "llamesh:mesh", kept.mesh);
  set_known(record, "llamesh:strategy", kept.strategy);
  set_known(record, "llamesh:version", kept.version);
  if (kept.best) record["llamesh:best"] = true;
  add_losses_to(record, kept.validation);
  return record;
}

Json source_record(const RunSource& source) {
  Json record = {{"prov:label", source.path}, {"llamesh:kind", name_of(source.kind)}};
  if (source.bytes) record["llamesh:bytes"] = *source.bytes;
  if (source.tokens) record["llamesh:tokens"] = *source.tokens;
  if (!source.hash.empty()) {
    record["llamesh:hash"] = source.hash;
    record["llamesh:hash_kind"] = hash_name(source.kind);
  }
  if (source.license) {
    record["llamesh:license"] = source.license->name;
    record["llamesh:license_stated_in"] = source.license->stated_in;
  }
  return record;
}

Json launch_record(const RunFacts& facts, std::size_t index) {
  const auto& launch = facts.launches[index];
  Json record = Json::object();
  if (launch.started) record["prov:startTime"] = iso_time(*launch.started);
  if (launch.ended && launch.last_record) record["prov:endTime"] = iso_time(*launch.last_record);
  record["prov:label"] = fmt::format("launch {} of {}", index + 1, facts.name);
  record["llamesh:first_step"] = launch.first_step;
  record["llamesh:last_step"] = launch.last_step;
  set_known(record, "llamesh:initial_weights", launch.weights);
  set_known(record, "llamesh:mesh", launch.mesh);
  if (launch.ranks) record["llamesh:ranks"] = *launch.ranks;
  set_known(record, "llamesh:host", launch.host);
  set_known(record, "llamesh:job", launch.job);
  if (launch.joules) record["llamesh:kilowatt_hours"] = *launch.joules / 3.6e6;
  add_losses_to(record, launch.validation);
  return record;
}

Json software_record(const LaunchFacts& launch) {
  Json record = {{"prov:type", qualified("prov:SoftwareAgent")}, {"prov:label", "llamesh"}};
  set_known(record, "llamesh:version", launch.version);
  set_known(record, "llamesh:commit", launch.commit);
  return record;
}

/// A document's relations, numbered in their order.
class Relations {
 public:
  void add(const char* relation, Json members) {
    auto& all = relations_[relation];
    if (all.is_null()) all = Json::object();
    append(all, fmt::format("_:{}{}", relation, all.size() + 1), std::move(members));
  }
  void move_into(Json& document) {
    for (auto& [relation, all] : relations_.items()) document[relation] = std::move(all);
  }

 private:
  Json relations_ = Json::object();
};

void relate_launch(const RunFacts& facts, std::size_t index, Relations& relations) {
  const auto& launch = facts.launches[index];
  const auto activity = launch_name(index);
  const auto uses = [&](const std::string& entity) {
    relations.add("used", {{"prov:activity", activity}, {"prov:entity", entity}});
  };
  relations.add("wasAssociatedWith",
                {{"prov:activity", activity}, {"prov:agent", software_name(launch)}});
  if (launch.has_config) uses(in_run("config.yaml"));
  for (const auto i : launch.used) uses(source_name(i));
  if (launch.resumed_from) uses(checkpoint_name(facts.checkpoints[*launch.resumed_from]));
  // The run may have removed the checkpoint since then.
  if (launch.continues)
    relations.add("wasInformedBy", {{"prov:informed", activity},
                                    {"prov:informant", launch_name(*launch.continues)}});
}

/// Relates a checkpoint to the launch that wrote it, and to the weights that the launch began with.
void relate_checkpoint(const RunFacts& facts, const KeptCheckpoint& kept, Relations& relations) {
  if (!kept.launch) return;
  const auto& launch = facts.launches[*kept.launch];
  const auto activity = launch_name(*kept.launch);
  const auto entity = checkpoint_name(kept);
  relations.add("wasGeneratedBy", {{"prov:entity", entity}, {"prov:activity", activity}});
  const auto derive = [&](const std::string& from) {
    relations.add(
        "wasDerivedFrom",
        {{"prov:generatedEntity", entity}, {"prov:usedEntity", from}, {"prov:activity", activity}});
  };
  if (launch.resumed_from) derive(checkpoint_name(facts.checkpoints[*launch.resumed_from]));
  if (launch.origin) derive(source_name(*launch.origin));
}

/// Relates the files that every launch continues to the newest one: in PROV, one activity generates
/// an entity.
void relate_files(const RunFacts& facts, Relations& relations) {
  if (facts.launches.empty()) return;
  for (const auto& file : facts.files)
    if (file.name == "metrics.jsonl" || file.name == "log.txt")
      relations.add("wasGeneratedBy", {{"prov:entity", in_run(file.name)},
                                       {"prov:activity", launch_name(facts.launches.size() - 1)}});
}

double first_record(const RunFacts& facts) {
  return facts.launches.empty() ? facts.last_record
                                : facts.launches.front().started.value_or(facts.last_record);
}

}  // namespace

Json prov_json(const RunFacts& facts) {
  const auto run =
      fmt::format("urn:x-llamesh:run:{}:{:.3f}:", percent_encoded(facts.name), first_record(facts));
  Json document = {{"prefix", {{"llamesh", prov_terms}, {"run", run}}}};
  auto& entities = document["entity"] = Json::object();
  for (const auto& file : facts.files)
    append(entities, in_run(file.name), file_record(file, facts.config_hash));
  for (std::size_t i = 0; i < facts.sources.all().size(); ++i)
    append(entities, source_name(i), source_record(facts.sources.all()[i]));
  for (const auto& kept : facts.checkpoints)
    append(entities, checkpoint_name(kept), checkpoint_record(kept));
  Json activities = Json::object(), agents = Json::object();
  Relations relations;
  for (std::size_t i = 0; i < facts.launches.size(); ++i) {
    activities[launch_name(i)] = launch_record(facts, i);
    agents[software_name(facts.launches[i])] = software_record(facts.launches[i]);
    relate_launch(facts, i, relations);
  }
  for (const auto& kept : facts.checkpoints) relate_checkpoint(facts, kept, relations);
  relate_files(facts, relations);
  document["activity"] = std::move(activities);
  document["agent"] = std::move(agents);
  relations.move_into(document);
  return document;
}

}  // namespace llamesh::app
