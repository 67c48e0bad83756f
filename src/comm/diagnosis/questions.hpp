#pragma once

#include <cstdint>
#include <list>
#include <set>

#include "comm/mpi/backoff.hpp"
#include "comm/mpi/communicator.hpp"
#include "comm/mpi/mpi.hpp"

namespace llamesh::comm {

/// Questions from one rank's watchdog to another's, and the answers. Both types are plain structs
/// with an `std::int64_t number` that pairs them. Sending never blocks: if a rank cannot be
/// reached, its question gets no answer. One thread at a time, the one that uses `group`.
template <class Question, class Answer>
class Questions {
 public:
  /// Uses `tag` for questions and `tag + 1` for answers. Borrows `group`.
  Questions(const Communicator& group, int tag) : group_(group), tag_(tag) {}

  /// Asks `rank`; returns the question's number.
  std::int64_t ask(int rank, Question question) {
    question.number = ++numbers_;
    unanswered_.insert(question.number);
    auto& message = sending_.emplace_back();
    message.question = question;
    if (!send(message, message.question, rank, tag_)) unanswered_.erase(question.number);
    return question.number;
  }

  /// Answers all pending questions with answer(source, question), and passes each arrived answer to
  /// take(source, answer).
  template <class Respond, class Take>
  void serve(const Respond& respond, const Take& take) {
    receive_all<Question>(tag_, [&](int source, const Question& question) {
      auto& message = sending_.emplace_back();
      message.answer = respond(source, question);
      message.answer.number = question.number;
      send(message, message.answer, source, tag_ + 1);
    });
    receive_all<Answer>(tag_ + 1, [&](int source, const Answer& answer) {
      unanswered_.erase(answer.number);
      take(source, answer);
    });
    std::erase_if(sending_, [](Sending& message) {
      int done = 0;
      return !succeeded(MPI_Test(&message.request, &done, MPI_STATUS_IGNORE), name) || done != 0;
    });
  }

  /// Serves until all ranks are here and no message is in flight. If `abandon` is set, this rank
  /// does not wait for answers to its own questions. Collective.
  template <class Respond, class Take>
  void shut_down(bool abandon, const Respond& respond, const Take& take) {
    Backoff backoff;
    const auto serve_and_pause = [&] {
      serve(respond, take);
      backoff.pause();
    };
    while (!unanswered_.empty() && !abandon) serve_and_pause();
    // Twice: after the first round no question is sent any more, after the second no answer. Open
    // MPI would give a later one to the next communicator that gets this one's context id, where it
    // takes the place of another message.
    for (int round = 0; round < 2; ++round) {
      MPI_Request all_are_here = MPI_REQUEST_NULL;
      check(MPI_Ibarrier(native(group_), &all_are_here), "the end of the run");
      for (int here = 0; here == 0; serve_and_pause())
        check(MPI_Test(&all_are_here, &here, MPI_STATUS_IGNORE), "the end of the run");
      while (!sending_.empty()) serve_and_pause();
    }
  }

 private:
  static constexpr auto name = "a watchdog's question";

  struct Sending {
    Question question;
    Answer answer;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  /// Returns false if the rank cannot be reached.
  template <class Message>
  bool send(Sending& kept, const Message& message, int rank, int tag) {
    const bool sent = succeeded(
        MPI_Isend(&message, sizeof(Message), MPI_BYTE, rank, tag, native(group_), &kept.request),
        name);
    if (!sent) kept.request = MPI_REQUEST_NULL;
    return sent;
  }

  template <class Message, class Handle>
  void receive_all(int tag, const Handle& handle) {
    for (;;) {
      int arrived = 0;
      MPI_Status status;
      if (!succeeded(MPI_Iprobe(MPI_ANY_SOURCE, tag, native(group_), &arrived, &status), name) ||
          arrived == 0)
        return;
      Message message;
      if (!succeeded(MPI_Recv(&message, sizeof(Message), MPI_BYTE, status.MPI_SOURCE, tag,
                              native(group_), MPI_STATUS_IGNORE),
                     name))
        return;
      handle(status.MPI_SOURCE, message);
    }
  }

  const Communicator& group_;
  int tag_;
  std::int64_t numbers_ = 0;
  std::set<std::int64_t> unanswered_;
  std::list<Sending> sending_;  ///< a list: MPI reads the messages in place
};

}  // namespace llamesh::comm
