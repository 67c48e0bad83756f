#include "data/validation.hpp"

#include <algorithm>
#include <span>

#include "core/error.hpp"

namespace llamesh::data {
namespace {

std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

ValidationData::ValidationData(const TokenStream& stream, const BatchPartition& partition,
                               std::int64_t limit)
    : stream_(stream), partition_(partition) {
  validate(stream.size() >= 2,
           "the validation data {} has {} tokens; a prediction needs at least 2", stream.describe(),
           stream.size());
  if (stream.has_pairs()) packed_.emplace(stream, stream.packing(), partition.sequence_length);
  sequences_ = packed_ ? packed_->size() : ceil_div(stream.size() - 1, partition.sequence_length);
  is_whole_ = limit == 0 || limit >= sequences_;
  if (!is_whole_) sequences_ = limit;
  batches_ = ceil_div(sequences_, partition.ranks * partition.micro_batch);
}

void ValidationData::read(std::int64_t k, TokenBatch& batch) const {
  expects(k >= 0 && k < batches_, "validation batch {} of {}", k, batches_);
  const std::int64_t first = (k * partition_.ranks + partition_.rank) * partition_.micro_batch;
  for (std::int64_t row = 0; row < partition_.micro_batch; ++row) {
    if (first + row >= sequences_)
      batch.set_row(row, stream_, std::span<const PackedPiece>());
    else if (packed_)
      batch.set_row(row, stream_, packed_->pieces(first + row));
    else
      batch.set_row(row, stream_, first + row);
  }
}

void ValidationData::check_targets() const {
  const std::int64_t end =
      packed_ ? stream_.size()
              : std::min(sequences_ * partition_.sequence_length + 1, stream_.size());
  validate(stream_.next_target(1, end) < end,
           "no token of the validation data {} counts in the loss: {}check their loss mask and "
           "where their documents end",
           stream_.describe(), is_whole_ ? "" : "evaluate more sequences, or ");
}

}  // namespace llamesh::data
