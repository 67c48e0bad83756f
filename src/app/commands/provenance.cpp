#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "app/commands/commands.hpp"
#include "app/program/options.hpp"
#include "app/provenance/prov_json.hpp"
#include "app/provenance/ro_crate.hpp"
#include "core/file.hpp"

namespace llamesh::app {
namespace {

namespace fs = std::filesystem;

constexpr const char* crate_file = "ro-crate-metadata.json";
constexpr const char* prov_file = "provenance.json";

/// Returns true if the file begins as this command writes it, with `mark`; false if it cannot be
/// read.
bool has_own_mark(const fs::path& path, std::string_view mark) noexcept {
  try {
    std::string begin(1024, '\0');
    const auto file = Descriptor::to_read(path);
    begin.resize(static_cast<std::size_t>(file.read_some(0, begin.data(), std::ssize(begin))));
    return begin.starts_with('{') && begin.find(mark) != begin.npos;
  } catch (const std::exception&) {
    return false;
  }
}

/// Returns the run folder's URI with a final slash, or "" if the documents lie in that folder.
std::string uri_prefix(const fs::path& run, const fs::path& to) {
  std::error_code ignored;
  if (fs::equivalent(run, to, ignored)) return "";
  return "file://" + percent_encoded((fs::weakly_canonical(run) / "").string(), "/~");
}

std::string document_text(const Json& document) {
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

/// Chooses the policy for a file that may be there: our own may always be replaced.
OutputFile own_output(const fs::path& path, const char* mark, Existing existing) {
  return {path.string(), has_own_mark(path, mark) ? Existing::replace : existing};
}

void write_documents(const fs::path& run, const fs::path& to, const std::string& license,
                     Existing existing) {
  const auto facts = read_run_facts(run);
  // Both names are checked before either file is written.
  const auto crate = own_output(to / crate_file, crate_mark, existing);
  const auto prov = own_output(to / prov_file, prov_terms, existing);
  write_durably(prov.path(), document_text(prov_json(facts)));
  write_durably(crate.path(), document_text(ro_crate(facts, license, uri_prefix(run, to))));
  for (const auto* file : {&crate, &prov}) fmt::print("{}\n", printable(file->path().string()));
}

}  // namespace

int provenance(const std::string& run, const std::string& to, const std::string& license,
               Existing existing) {
  if (to == "-") {
    const auto facts = read_run_facts(run);
    print_json({{crate_file, ro_crate(facts, license, "")}, {prov_file, prov_json(facts)}});
  } else {
    write_documents(run, to.empty() ? run : to, license, existing);
  }
  return 0;
}

void declare_provenance(CLI::App& parser, Run& chosen) {
  auto& command = add_command(
      parser, "provenance", "Write what a run is made of, as RO-Crate and W3C PROV-JSON",
      {"llamesh provenance runs/tiny", "llamesh provenance runs/tiny --to FOLDER --license MIT"});
  auto& [run, to, license, existing] = runs(command, chosen, provenance);
  command.add_option("RUN", run, "A run folder; the run may be training")->required();
  command.add_option("--to", to,
                     "Folder for ro-crate-metadata.json and provenance.json (default: RUN); - "
                     "prints both as one JSON object");
  command.add_option("--license", license, "License of the results: a name such as MIT, or a URL");
  add_force(command, existing);
}

}  // namespace llamesh::app
