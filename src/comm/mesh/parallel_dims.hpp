#pragma once

#include <bitset>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llamesh::comm {

/// Division of a step's work among the ranks along an axis.
enum class Divides : std::uint8_t {
  batch,     ///< each reads other sequences; their gradients add up
  replicas,  ///< each reads other sequences and trains a model of its own, apart from the others
  sequence,  ///< each has a part of the same sequences; their gradients add up
  layers,    ///< each has other layers, through which all tokens pass
  nothing,   ///< all have the same tokens: they divide matrices
};

/// One named mesh axis; axes are listed outermost first.
struct MeshAxis {
  std::string name;
  int size = 1;
  Divides divides;

  /// An axis of the mesh of a run, whose name says what it divides: `replicate`, `shard` and
  /// `expert` the batch, `context` the sequence, `pipeline` the layers, any other nothing.
  MeshAxis(std::string name, int size);
  MeshAxis(std::string name, int size, Divides divides)
      : name(std::move(name)), size(size), divides(divides) {}
};

/// A set of axes in one mesh: bit i is the i-th axis, or the i-th factor if an axis is split.
using AxisSet = std::bitset<8>;

/// A partition of a mesh's ranks into groups: those that differ only along some axes, or pairs of
/// them that are neighbors along one axis.
struct RankGroups {
  RankGroups(AxisSet along) : along(along) {}  // NOLINT(google-explicit-constructor)
  /// Pairs along a whole axis: coordinates `first` and `first` + 1, `first` + 2 and `first` + 3,
  /// and so on, behind the last one the first again. With an odd size the rank before `first` is
  /// alone.
  static RankGroups pairs(AxisSet axis, int first) {
    RankGroups groups(axis);
    groups.first_pair = first;
    return groups;
  }
  bool operator==(const RankGroups&) const = default;

  AxisSet along;
  int first_pair = -1;  ///< none
};

/// Ranks laid out as a grid with named axes, row-major: the innermost axis runs over neighboring
/// ranks. It answers every question about a rank's coordinates and about groups, for any list of
/// axes; nothing else computes a rank from a rank. Pure arithmetic, the same on every rank.
///
/// A group along some axes is the set of ranks that differ only in these axes, in rank order. Along
/// no axis every rank is a group by itself. A pair begins with its first coordinate (RankGroups).
class ParallelDims {
 public:
  ParallelDims() = default;  ///< a single rank
  /// Throws a user error if a size is below 1, a name is repeated, or there are too many axes.
  explicit ParallelDims(std::vector<MeshAxis> axes);

  /// Splits the outermost factor of the named axis in two, the inner one with `inner` neighboring
  /// ranks; groups may run along either. An axis may be split again, from the innermost groups to
  /// the outermost. Axis sets from the old mesh do not fit the new one. Throws a user error if
  /// `inner` does not divide the factor.
  ParallelDims split(std::string_view name, int inner) const;

  const std::vector<MeshAxis>& axes() const { return axes_; }
  int ranks() const { return group_size(all()); }

  AxisSet all() const;
  /// Returns the axes with these names. A missing axis counts as one with size 1.
  AxisSet named(std::initializer_list<std::string_view> names) const;
  /// Returns the inner factors of a split axis; empty for any other.
  AxisSet inner(std::string_view name) const;
  /// Returns these axes without those of size 1.
  AxisSet without_ones(AxisSet axes) const;
  /// Returns the mesh in which replicas along `axis` train apart.
  ParallelDims with_replicas_apart(std::string_view axis) const;
  /// Returns the axes along which replicas train apart.
  AxisSet apart() const { return dividing({Divides::replicas}); }
  /// Returns the axes along which the ranks read different sequences.
  AxisSet batch_axes() const { return dividing({Divides::batch, Divides::replicas}); }
  /// Returns the axes over which losses and token counts add up: those that divide batch or
  /// sequence.
  AxisSet data_axes() const { return gradient_axes() | apart(); }
  /// Returns the axes over which gradients add up too.
  AxisSet gradient_axes() const { return dividing({Divides::batch, Divides::sequence}); }
  /// Returns the axis along which each layer's matrices are split.
  AxisSet tensor() const { return named({"tensor"}); }
  /// Returns the axis along which layers are divided.
  AxisSet pipeline() const { return named({"pipeline"}); }
  /// Returns the axis along which sequences are divided.
  AxisSet context() const { return named({"context"}); }

  /// Returns the coordinates of `rank` along axes(), outermost first.
  std::vector<int> coordinates(int rank) const;
  /// Returns the ranks in a group; of pairs, 2 if the axis has that many.
  int group_size(const RankGroups& groups) const;
  /// Returns the rank's index within its group, 0 to group_size() - 1.
  int rank_in_group(const RankGroups& groups, int rank) const;
  /// Returns the ranks in the group that contains `rank`.
  std::vector<int> group(const RankGroups& groups, int rank) const;

 private:
  AxisSet dividing(std::initializer_list<Divides> kinds) const;
  int size_along(AxisSet along) const;
  int place_along(AxisSet along, int rank) const;
  std::vector<int> group_along(AxisSet along, int rank) const;

  struct Factor {
    std::size_t axis;
    int size;
    int stride;  ///< distance in ranks between neighbors along it
  };
  int coordinate(const Factor& factor, int rank) const {
    return rank / factor.stride % factor.size;
  }

  std::vector<MeshAxis> axes_;
  std::vector<Factor> factors_;  ///< one or several per axis
};

/// Formats a mesh: "replicate=2 x shard=4".
std::string to_string(const ParallelDims& dims);
/// Formats a set: "replicate x shard", the axes with at least one factor in it; empty for no axis.
std::string to_string(AxisSet axes, const ParallelDims& dims);

}  // namespace llamesh::comm
