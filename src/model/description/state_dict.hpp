#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/box.hpp"
#include "model/description/parameters.hpp"

namespace llamesh::model {

/// A part of a stored tensor and the part of a parameter that it holds. Both parts have the same
/// elements in row-major order. If `transposed`, both are matrices, each perhaps in a stack,
/// and one is the other's transpose.
struct StoredPart {
  Box in_tensor;  ///< its shape counts the part's own rows and columns, whatever their step
  ParameterId parameter;
  Box in_parameter;
  bool transposed = false;
  /// Rows of the tensor from one of the part's rows to its next. If it is not 1, rows are whole.
  std::int64_t row_step = 1;
  /// Likewise columns, i.e. elements in the last dim.
  std::int64_t column_step = 1;
};

/// A tensor in a Hugging Face folder.
struct StateDictTensor {
  std::string name;
  Shape shape;
  std::vector<StoredPart> parts;  ///< cover the tensor
};

/// A number that a family's folders store as a tensor without dims, and llamesh computes with.
struct StoredConstant {
  std::string name;
  float value;
};

/// How a family's folders store the parameters of a table, tensor by tensor in the order in which
/// an export writes them. It expresses renamed, transposed, fused (several parts of one tensor) and
/// stacked tensors (several parts of one parameter), and rows and columns in another order.
using StateDict = std::vector<StateDictTensor>;

/// Which turn a parameter has in a tensor's last dim, where several take turns.
struct Turn {
  std::int64_t place, of;
};

/// Which dims of a head of E a folder's model rotates together, of the first r.
enum class RotaryPairs : std::uint8_t {
  halves,      ///< i and i + r/2, as in GPT-NeoX and Llama
  interleaved  ///< 2i and 2i + 1, as in GPT-J
};

/// How a folder orders the dims of a head. Ours has the pairs (i, i + E/2), of which the first r/2
/// rotate. Products of queries and keys are the same in any order.
struct RotaryOrder {
  std::int64_t head_dim;  ///< E
  std::int64_t rotated;   ///< r
  RotaryPairs pairs = RotaryPairs::halves;
  bool rotates_last = false;   ///< a head's last r dims rotate, not its first
  std::int64_t first_row = 0;  ///< rows before the first head, in any order
  /// Returns true if it is our order.
  bool is_ours() const { return pairs == RotaryPairs::halves && rotated == head_dim; }
};

/// Rows in equal blocks: the first from a row on, each so many rows behind the one before it.
struct RowBlocks {
  std::int64_t rows, first, step;
};

/// Builds a StateDict, parameter by parameter.
class StateDictBuilder {
 public:
  /// `table` is borrowed.
  explicit StateDictBuilder(const ParameterTable& table) : table_(table) {}

  /// Stores a parameter by its name, as it is.
  void plain(ParameterId id);
  /// Stores a matrix, or each of a stack, by its name, transposed.
  void transposed(ParameterId id);
  /// Stores stacked matrices, each transposed, or vectors (N, out) in the tensor `name`, in whose
  /// last dim parameters with the same shape take turns.
  void interleaved(const std::string& name, ParameterId id, const Turn& turn);
  /// Stores a matrix or vector behind the parts of the tensor `name` so far: in further rows, or if
  /// it is `transposed`, in further columns.
  void fused(const std::string& name, ParameterId id, bool transposed);
  /// Likewise, in further rows: those of each of its heads in another order.
  void fused(const std::string& name, ParameterId id, const RotaryOrder& order);
  /// Likewise, in blocks among those that other parameters have.
  void fused(const std::string& name, ParameterId id, const RowBlocks& blocks);
  /// Stores a matrix or vector by its name, the rows of each of its heads in another order.
  void rotary(ParameterId id, const RotaryOrder& order);
  void add(StateDictTensor tensor) { dict_.push_back(std::move(tensor)); }
  /// Stores each of the matrices stacked in a parameter MODULE.NAME as MODULE.number.NAME.weight.
  void unstacked(ParameterId id);
  StateDict take() { return std::move(dict_); }

 private:
  StateDictTensor& tensor(const std::string& name, const Shape& part, std::size_t dim);
  std::vector<StoredPart> heads(ParameterId id, const RotaryOrder& order) const;

  const ParameterTable& table_;
  StateDict dict_;
};

/// Returns the dict of a folder that has each parameter by its name in the table, as it is.
StateDict plain_state_dict(const ParameterTable& table);

/// Stores the same values with the tensor's last two dims exchanged. Rows keep their step.
StateDictTensor with_exchanged_dims(StateDictTensor tensor);

/// `count` elements in a tensor: begin, begin + step, …
struct StoredRun {
  std::int64_t begin, step, count;
  /// Returns the elements from the first to the last, those between included.
  std::int64_t span() const { return (count - 1) * step + 1; }
};

/// Visits the elements that `range` of a parameter shares with `part`, in runs of the tensor, of
/// `shape`. visit(run, at, stride): the run's elements are range elements at, at + stride, … Pure.
using VisitStored = std::function<void(const StoredRun& run, std::int64_t at, std::int64_t stride)>;
void for_each_stored(const StoredPart& part, const Shape& shape, const BoxRange& range,
                     const VisitStored& visit);

}  // namespace llamesh::model
