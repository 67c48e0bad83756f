#include "comm/communicator.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <climits>
#include <exception>
#include <numeric>
#include <optional>

#include "comm/mpi.hpp"
#include "comm/session.hpp"

namespace llamesh::comm {
namespace {

/// One call of a nonblocking MPI collective, completed politely.
template <class Start>
void complete(std::string_view doing, Start&& start) {
  MPI_Request request = MPI_REQUEST_NULL;
  check(start(&request), doing);
  wait(request, doing);
}

template <class T>
std::vector<T> gather_values(const Communicator& group, T value, MPI_Datatype type) {
  std::vector<T> all(static_cast<std::size_t>(group.size()));
  complete("the gathering of values", [&](MPI_Request* request) {
    return MPI_Iallgather(&value, 1, type, all.data(), 1, type, native(group), request);
  });
  return all;
}

}  // namespace

Communicator::Handle::Handle(MPI_Comm owned) : comm(owned) {
  check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
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

Communicator Communicator::duplicate() const {
  MPI_Comm copy = MPI_COMM_NULL;
  complete("the duplication of a communicator",
           [&](MPI_Request* request) { return MPI_Comm_idup(handle_->comm, &copy, request); });
  return Communicator(std::make_unique<Handle>(copy));
}

Communicator Communicator::split(int color, int key) const {
  barrier();  // MPI_Comm_split has no polite form; after a barrier it is short
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split(handle_->comm, color, key, &part), "MPI_Comm_split");
  return Communicator(std::make_unique<Handle>(part));
}

Communicator Communicator::split_shared_memory() const {
  barrier();
  MPI_Comm part = MPI_COMM_NULL;
  check(MPI_Comm_split_type(handle_->comm, MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &part),
        "MPI_Comm_split_type");
  return Communicator(std::make_unique<Handle>(part));
}

void Communicator::barrier() const {
  complete("a barrier", [&](MPI_Request* request) { return MPI_Ibarrier(handle_->comm, request); });
}

double Communicator::sum(double value) const {
  const auto all = gather_values(*this, value, MPI_DOUBLE);
  return std::accumulate(all.begin(), all.end(), 0.0);
}

std::int64_t Communicator::sum(std::int64_t value) const {
  const auto all = all_gather(value);
  return std::accumulate(all.begin(), all.end(), std::int64_t{0});
}

std::int64_t Communicator::max(std::int64_t value) const {
  return std::ranges::max(all_gather(value));
}

std::int64_t Communicator::min(std::int64_t value) const {
  return std::ranges::min(all_gather(value));
}

std::vector<std::int64_t> Communicator::all_gather(std::int64_t value) const {
  return gather_values(*this, value, MPI_INT64_T);
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
  complete("the gathering of texts", [&](MPI_Request* request) {
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
  complete("a broadcast", [&](MPI_Request* request) {
    return MPI_Ibcast(&length, 1, MPI_INT64_T, root, handle_->comm, request);
  });
  expects(length <= INT_MAX, "a text of {} bytes is too long to be broadcast", length);
  text.resize(static_cast<std::size_t>(length));
  complete("a broadcast", [&](MPI_Request* request) {
    return MPI_Ibcast(text.data(), static_cast<int>(length), MPI_CHAR, root, handle_->comm,
                      request);
  });
  return text;
}

namespace {

/// How a phase ended on one rank, as one number that ranks can exchange.
struct Outcome {
  std::optional<ExitCode> code;  // none: it went well
  bool follows = false;          // the error is another rank's (Failed)

  std::int64_t encode() const {
    return code ? 2 * (static_cast<std::int64_t>(*code) + 1) + (follows ? 1 : 0) : 0;
  }
  static Outcome decode(std::int64_t number) {
    if (number == 0) return {};
    return {static_cast<ExitCode>(number / 2 - 1), number % 2 != 0};
  }
};

}  // namespace

void agree(const Communicator& group, const std::function<void()>& phase) {
  Outcome mine;
  std::exception_ptr error;
  try {
    phase();
  } catch (const Failed& failed) {
    mine = {failed.code(), true};
    error = std::current_exception();
  } catch (const std::exception& own) {
    const Error told = as_error(own);
    mine = {told.code(), false};
    error = std::make_exception_ptr(told);
  } catch (...) {
    mine = {ExitCode::internal_error, false};
    error = std::make_exception_ptr(Error(ExitCode::internal_error, "an error of unknown type"));
  }
  // The rank that tells is the lowest with an error of its own; a Failed has nothing to say.
  int teller = -1;
  Outcome told;
  const auto outcomes = group.all_gather(mine.encode());
  for (int r = 0; r < group.size(); ++r) {
    const auto outcome = Outcome::decode(outcomes[static_cast<std::size_t>(r)]);
    if (!outcome.code) continue;
    if (teller >= 0 && (!told.follows || outcome.follows)) continue;
    teller = r;
    told = outcome;
  }
  if (teller < 0) return;
  if (teller == group.rank()) std::rethrow_exception(error);
  throw Failed(*told.code);
}

std::string on_rank_0(const Communicator& group, const std::function<std::string()>& phase) {
  std::string text;
  agree(group, [&] {
    if (group.rank() == 0) text = phase();
  });
  return group.broadcast(std::move(text));
}

}  // namespace llamesh::comm
