// For any small file in a run folder, any data fingerprint in a checkpoint, or any GEMM table, the
// answer is a value that can be written and read again, or none. An input's first byte chooses the
// file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "answer.hpp"
#include "app/models/origin.hpp"
#include "app/report/report.hpp"
#include "app/status/run_status.hpp"
#include "checkpoint/store/lease.hpp"
#include "data/fingerprint.hpp"
#include "ops/cuda/gemm/gemm_table.hpp"
#include "train/records/run_state.hpp"

namespace {

using llamesh::ExitCode;
using llamesh::test::expect;
using llamesh::test::expect_an_answer;
namespace app = llamesh::app;
namespace checkpoint = llamesh::checkpoint;
namespace cuda = llamesh::ops::cuda;
namespace data = llamesh::data;
namespace train = llamesh::train;

void read_state(const std::string& text) {
  const auto state = train::parse_run_state(text);
  if (!state) return;
  auto again = train::parse_run_state(to_text(*state));
  expect(again.has_value(), "the state is not taken once it is written");
  again->job = state->job;  // the writer's own
  again->time = state->time;
  expect(again == state, "the state does not survive writing");
  for (const bool scheduled : {false, true})
    expect_an_answer([&] { train::start_after(state, 40, scheduled); }, ExitCode::no_progress);
}

void read_failure(const std::string& text) {
  const auto dump = [](const app::Json& json) {
    return json.dump(-1, ' ', false, app::Json::error_handler_t::replace);
  };
  const auto failure = app::parse_failure(text);
  if (failure.is_null()) return;
  expect(failure.size() == 11, "a failure has other fields");
  expect(dump(app::parse_failure(dump(failure))) == dump(failure),
         "the failure does not survive being written");
}

void read_fingerprint(const std::string& text) {
  const auto fingerprint = data::parse_fingerprint(text);
  if (!fingerprint) return;
  const auto written = to_text(*fingerprint);
  const auto again = data::parse_fingerprint(written);
  expect(again && to_text(*again) == written, "the fingerprint does not survive being written");
  expect(difference(*fingerprint, *again).empty(), "a fingerprint differs from itself");
  difference({}, *fingerprint);
}

/// Checks that the page has its data and that nothing of the run ends their <script>.
void check_page(const std::vector<app::ReportedRun>& runs) {
  const std::string html = app::report_page(runs), before = app::page_before_data;
  expect(html.starts_with(before) && html.ends_with(app::page_after_data), "the page is cut");
  const std::string data = html.substr(
      before.size(), html.size() - before.size() - std::string_view(app::page_after_data).size());
  expect(data.find('<') == data.npos && app::Json::accept(data), "the data break the page");
}

void read_metrics(std::string_view text) {
  train::RunMetrics run;
  std::size_t lines = 0;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    run.unreadable += train::add_line(text.substr(0, end), run) ? 0 : 1;
    text.remove_prefix(std::min(end + 1, text.size()));
    ++lines;
  }
  expect(run.steps.size() + run.validation.size() + run.unreadable <= lines, "lines count twice");
  for (const auto& [step, metrics] : run.steps) expect(step >= 0, "a step is negative");
  if (!run.steps.empty()) check_page({{"fuzzed", "", run}});
}

void read_config(const std::string& text) {
  expect_an_answer([&] { app::tokenizer_of(app::origin_of(text)); });
  train::RunMetrics run;
  train::add_line(R"({"step": 1, "loss": 2})", run);
  check_page({{"fuzzed", text, run}, {"plain", "a: {b: 1}", run}});
  check_page({{"fuzzed", text, run}});
}

void read_lease(std::string_view text) {
  const auto holder = checkpoint::parse_lease(text);
  for (const auto& word : {holder.job, holder.host, holder.process})
    expect(std::ranges::none_of(word, [](unsigned char c) { return c <= ' ' || c == 0x7f; }),
           "a holder's name is not printable");
  expect(checkpoint::parse_lease(to_text(holder)) == holder, "the lease does not survive writing");
}

void read_table(const std::string& text) {
  const cuda::GemmLibrary here{"GPU", "13.1.0"};
  expect_an_answer([&] {
    const auto table = cuda::parse_table(text, "fuzzed", here);
    expect(cuda::parse_table(to_text(table, here), "written", here) == table,
           "the table does not survive being written");
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0]) {
    case 's':
      read_state(text);
      break;
    case 'f':
      read_fingerprint(text);
      break;
    case 'm':
      read_metrics(text);
      break;
    case 'c':
      read_config(text);
      break;
    case 'l':
      read_lease(text);
      break;
    case 'v':
      read_failure(text);
      break;
    case 'g':
      read_table(text);
      break;
    default:
      break;
  }
  return 0;
}
