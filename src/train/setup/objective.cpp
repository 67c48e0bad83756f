#include "train/setup/run_inputs.hpp"

namespace llamesh::train {

void resolve_objective(Inputs& in) {
  auto& data = in.data;
  data.pairs = in.train.objective != Objective::next_token;
  if (!data.pairs) return;
  data.document_mask = true;
  if (data.packing == data::Packing::concatenate) data.packing = data::Packing::best_fit;
}

}  // namespace llamesh::train
