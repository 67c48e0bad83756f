#pragma once

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llamesh::comm {

/// How the ranks along an axis divide the work of a step.
enum class Divides : std::uint8_t {
  batch,     ///< each reads other sequences; their gradients add up
  sequence,  ///< each has a part of the same sequences; their gradients add up
  nothing,   ///< all have the same tokens: they divide matrices
};

/// One named axis of a mesh; axes are listed outermost first.
struct MeshAxis {
  std::string name;
  int size = 1;
  Divides divides;

  /// An axis of the mesh of a run, whose name says what it divides: `replicate`, `shard` and
  /// `expert` the batch, `context` the sequence, any other nothing.
  MeshAxis(std::string name, int size);
  MeshAxis(std::string name, int size, Divides divides)
      : name(std::move(name)), size(size), divides(divides) {}
};

/// Some of the axes of one mesh: bit i is its i-th axis, or the i-th factor of its axes where one
/// is split.
using AxisSet = std::bitset<8>;

/// The ranks laid out as a grid with named axes, row-major: the innermost axis runs over
/// neighbouring ranks. It answers every question about a rank's coordinates and about which ranks
/// form a group, for any list of axes; nothing else computes a rank from a rank. Pure arithmetic,
/// the same on every rank.
///
/// A group along some axes are the ranks that differ in these axes only, in rank order. Along no
/// axis every rank is a group of one.
class ParallelDims {
 public:
  ParallelDims() = default;  ///< one rank
  /// Throws a user error when a size is below 1, a name is there twice or there are too many axes.
  explicit ParallelDims(std::vector<MeshAxis> axes);

  /// Splits the outermost factor of an axis in two, the inner one of `inner` ranks that are
  /// neighbours along it: groups may run along either. An axis may be split several times, from
  /// the innermost groups to the outermost. An AxisSet belongs to one mesh: sets of the mesh before
  /// the split do not fit the result. Throws a user error if `inner` does not divide the factor.
  ParallelDims split(std::string_view name, int inner) const;

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int ranks() const { return group_size(all()); }

  AxisSet all() const;
  /// The axes of these names. A mesh that lacks one is as if that axis had size 1.
  AxisSet named(std::initializer_list<std::string_view> names) const;
  /// The inner factors of an axis that is split; none of another.
  AxisSet inner(std::string_view name) const;
  /// These axes but for those of one rank.
  AxisSet without_ones(AxisSet axes) const;
  /// Axes along which the ranks read different sequences.
  AxisSet batch_axes() const { return dividing({Divides::batch}); }
  /// Axes over which gradients, losses and token counts add up: they divide batch or sequence.
  AxisSet gradient_axes() const { return dividing({Divides::batch, Divides::sequence}); }
  /// The axis along which the matrices of each layer are divided.
  AxisSet tensor() const { return named({"tensor"}); }

  /// Coordinates of `rank` along axes(), outermost first.
  std::vector<int> coordinates(int rank) const;
  int group_size(AxisSet along) const;
  /// The rank of `rank` within its group, 0 to group_size() - 1.
  int rank_in_group(AxisSet along, int rank) const;
  /// The ranks of the group of `rank`.
  std::vector<int> group(AxisSet along, int rank) const;

 private:
  AxisSet dividing(std::initializer_list<Divides> kinds) const;

  struct Factor {
    std::size_t axis;
    int size;
    int stride;  ///< how many ranks apart neighbours along it are
  };
  int coordinate(const Factor& factor, int rank) const {
    return rank / factor.stride % factor.size;
  }

  std::vector<MeshAxis> axes_;
  std::vector<Factor> factors_;  ///< one or several per axis
};

/// "replicate=2 x shard=4".
std::string to_string(const ParallelDims& dims);
/// "replicate x shard": the axes that are in it, or a factor of which is; empty for no axis.
std::string to_string(AxisSet axes, const ParallelDims& dims);

}  // namespace llamesh::comm
