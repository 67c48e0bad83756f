#include "comm/mpi/communicator.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <climits>
#include <exception>
#include <numeric>
#include <optional>

#include "comm/calls/flight_record.hpp"
#include "comm/mpi/exchange.hpp"
#include "comm/mpi/mpi.hpp"
#include "comm/mpi/session.hpp"
#include "core/hash.hpp"

namespace llamesh::comm {
namespace {

/// Runs a nonblocking MPI collective to completion, polling with backoff.
template <class Start>
void complete(const Communicator& group, const char* kind, const char* purpose, Start&& start) {
  const InCollective in(group.members(), kind, purpose);
  MPI_Request request = MPI_REQUEST_NULL;
  check(start(&request), kind);
  wait(request, kind);
}

template <class T>
std::vector<T> gather_values(const Communicator& group, T value, MPI_Datatype type,
                             const char* kind, const char* purpose) {
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  complete(group, kind, purpose, [&](MPI_Request* request) {
    return MPI_Iallgather(&value, 1, type, all.data(), 1, type, native(group), request);
  });
  return all;
}

std::vector<int> ranks_in_world(MPI_Comm comm, int size) {
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  check(MPI_Comm_group(comm, &group), "MPI_Comm_group");
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  std::vector<int> own(static_cast<std::size_t>(size));
  std::iota(own.begin(), own.end(), 0);
  std::vector<int> ranks(own.size());
  check(MPI_Group_translate_ranks(group, size, own.data(), world, ranks.data()),
        "MPI_Group_translate_ranks");
  check(MPI_Group_free(&group), "MPI_Group_free");
  check(MPI_Group_free(&world), "MPI_Group_free");
  return ranks;
}

}  // namespace

Communicator::Handle::Handle(MPI_Comm owned, Handle* parent, const std::string& name)
    : comm(owned) {
  check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  Members made{name, 0, ranks_in_world(comm, size)};
  if (parent != nullptr) {
    if (name.empty()) made.name = parent->members->name;
    // All ranks create the same communicators in the same order, so they compute the same id for
    // each.
    const std::array origin{parent->members->id, ++parent->children,
                            static_cast<std::uint64_t>(made.ranks.front())};
    made.id = hash_of(origin.data(), sizeof(origin));
  }
  members = std::make_shared<const Members>(std::move(made));
}

Communicator::Handle::~Handle() {
  if (!may_free()) return;
  if (MPI_Comm_free(&comm) != MPI_SUCCESS) spdlog::warn("a communicator could not be freed");
}

Communicator::Communicator(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
Communicator::Communicator(Communicator&&) noexcept = default;
Communicator& Communicator::operator=(Communicator&&) noexcept = default;
Communicator::~Communicator() = default;

int Communicator::rank() const {
  return handle_->rank;
}
int Communicator::size() const {
  return handle_->size;
}
const std::shared_ptr<const Members>& Communicator::members() const {
  return handle_->members;
}

Communicator Communicator::duplicate() const {
  MPI_Comm copy = MPI_COMM_NULL;
  complete(*this, "duplication", "",
           [&](MPI_Request* request) { return MPI_Comm_idup(handle_->comm, &copy, request); });
  return Communicator(std::make_unique<Handle>(copy, handle_.get(), ""));
}

Communicator Communicator::split(int color, int key, const std::string& name) const {
  barrier();  // MPI_Comm_split has no nonblocking form; after a barrier it is short
  MPI_Comm part = MPI_COMM_NULL;
  const InCollective in(members(), "split", name.c_str());
  check(MPI_Comm_split(handle_->comm, color, key, &part), "MPI_Comm_split");
  return Communicator(std::make_unique<Handle>(part, handle_.get(), name));
}

Communicator Communicator::split_shared_memory() const {
  barrier();
  MPI_Comm part = MPI_COMM_NULL;
  const InCollective in(members(), "split", "ranks that share memory");
  check(MPI_Comm_split_type(handle_->comm, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &part),
        "MPI_Comm_split_type");
  return Communicator(std::make_unique<Handle>(part, handle_.get(), ""));
}

void Communicator::barrier(const char* purpose) const {
  complete(*this, "barrier", purpose,
           [&](MPI_Request* request) { return MPI_Ibarrier(handle_->comm, request); });
}

double Communicator::sum(double value, const char* purpose) const {
  const auto all = gather_values(*this, value, MPI_DOUBLE, "all-reduce", purpose);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

std::int64_t Communicator::sum(std::int64_t value, const char* purpose) const {
  const auto all = gather_values(*this, value, MPI_INT64_T, "all-reduce", purpose);
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

std::int64_t Communicator::max(std::int64_t value, const char* purpose) const {
  return std::ranges::max(gather_values(*this, value, MPI_INT64_T, "all-reduce", purpose));
}

std::int64_t Communicator::min(std::int64_t value, const char* purpose) const {
  return std::ranges::min(gather_values(*this, value, MPI_INT64_T, "all-reduce", purpose));
}

std::vector<std::int64_t> Communicator::all_gather(std::int64_t value, const char* purpose) const {
  return gather_values(*this, value, MPI_INT64_T, "all-gather", purpose);
}

std::vector<std::string> Communicator::all_gather(std::string_view text) const {
  const auto lengths = all_gather(static_cast<std::int64_t>(text.size()));
  std::vector<int> counts;
  std::vector<int> offsets;
  std::int64_t total = 0;
  for (const auto length : lengths) {
    expects(total + length <= INT_MAX, "texts of {} bytes are too long to be gathered",
            total + length);
    counts.push_back(static_cast<int>(length));
    offsets.push_back(static_cast<int>(total));
    total += length;
  }
  std::string joined(static_cast<std::size_t>(total), '\0');
  complete(*this, "all-gather", "texts", [&](MPI_Request* request) {
    return MPI_Iallgatherv(text.data(), static_cast<int>(text.size()), MPI_CHAR, joined.data(),
                           counts.data(), offsets.data(), MPI_CHAR, handle_->comm, request);
  });
  std::vector<std::string> all;
  for (std::size_t r = 0; r < counts.size(); ++r)
    all.push_back(
        joined.substr(static_cast<std::size_t>(offsets[r]), static_cast<std::size_t>(counts[r])));
  return all;
}

std::string Communicator::broadcast(std::string text, int root) const {
  auto length = static_cast<std::int64_t>(text.size());
  complete(*this, "broadcast", "a text", [&](MPI_Request* request) {
    return MPI_Ibcast(&length, 1, MPI_INT64_T, root, handle_->comm, request);
  });
  expects(length <= INT_MAX, "a text of {} bytes is too long to be broadcast", length);
  text.resize(static_cast<std::size_t>(length));
  complete(*this, "broadcast", "a text", [&](MPI_Request* request) {
    return MPI_Ibcast(text.data(), static_cast<int>(length), MPI_CHAR, root, handle_->comm,
                      request);
  });
  return text;
}

void all_gather_bytes(const Communicator& group, std::span<const std::byte> mine,
                      std::span<std::byte> all, const char* purpose) {
  expects(all.size() == mine.size() * static_cast<std::size_t>(group.size()),
          "room for {} bytes where {} ranks give {} each", all.size(), group.size(), mine.size());
  const auto count = static_cast<int>(mine.size());
  complete(group, "all-gather", purpose, [&](MPI_Request* request) {
    return MPI_Iallgather(mine.data(), count, MPI_BYTE, all.data(), count, MPI_BYTE, native(group),
                          request);
  });
}

namespace {

/// Outcome of a phase on one rank, encoded as one integer for exchange.
struct Outcome {
  std::optional<ExitCode> code;  // none: success
  bool follows = false;          // another rank failed (PeerFailure)

  std::int64_t encode() const {
    return code ? 2 * (static_cast<std::int64_t>(*code) + 1) + (follows ? 1 : 0) : 0;
  }
  static Outcome decode(std::int64_t number) {
    if (number == 0) return {};
    return {static_cast<ExitCode>(number / 2 - 1), number % 2 != 0};
  }
};

/// Message from each rank after a phase.
struct PhaseResult {
  std::int64_t outcome = 0;  // Outcome::encode()
  std::array<std::int64_t, 2> value = {};
};

}  // namespace

std::vector<std::array<std::int64_t, 2>> agree_and_gather(
    const Communicator& group, const std::function<std::array<std::int64_t, 2>()>& phase,
    const char* purpose) {
  Outcome mine;
  std::array<std::int64_t, 2> value = {};
  std::exception_ptr error;
  try {
    value = phase();
  } catch (const PeerFailure& failed) {
    mine = {failed.code(), true};
    error = std::current_exception();
  } catch (const Error& own) {
    mine = {own.code(), false};
    error = std::current_exception();
  } catch (const std::exception& own) {
    const Error mapped = as_error(own);
    mine = {mapped.code(), false};
    error = std::make_exception_ptr(mapped);
  } catch (...) {
    mine = {ExitCode::internal_error, false};
    error = std::make_exception_ptr(Error(ExitCode::internal_error, "an error of unknown type"));
  }
  // The lowest rank with an error of its own reports; a PeerFailure has nothing to report.
  int reporting = -1;
  Outcome reported;
  std::vector<std::array<std::int64_t, 2>> values;
  const auto results = all_gather(group, PhaseResult{mine.encode(), value}, purpose);
  for (int r = 0; r < group.size(); ++r) {
    const auto& result = results[static_cast<std::size_t>(r)];
    values.push_back(result.value);
    const auto outcome = Outcome::decode(result.outcome);
    if (!outcome.code) continue;
    if (reporting >= 0 && (!reported.follows || outcome.follows)) continue;
    reporting = r;
    reported = outcome;
  }
  if (reporting < 0) return values;
  if (reporting == group.rank()) std::rethrow_exception(error);
  throw PeerFailure(*reported.code);
}

void agree(const Communicator& group, const std::function<void()>& phase, const char* purpose) {
  agree_and_gather(
      group,
      [&] {
        phase();
        return std::array<std::int64_t, 2>{};
      },
      purpose);
}

std::string on_rank_0(const Communicator& group, const std::function<std::string()>& phase) {
  std::string text;
  agree(group, [&] {
    if (group.rank() == 0) text = phase();
  });
  return group.broadcast(std::move(text));
}

}  // namespace llamesh::comm
