#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace llamesh {

/// Sizes of the dims of an array, outermost first; elements are counted in row-major order.
using Shape = std::vector<std::int64_t>;
std::int64_t numel(const Shape& shape);

/// A rectangular part of an array, HDF5's hyperslab: of each dim d the indices
/// [begin[d], begin[d] + shape[d]).
struct Box {
  Shape begin;
  Shape shape;

  static Box whole(const Shape& array) { return {Shape(array.size(), 0), array}; }
  std::int64_t numel() const { return llamesh::numel(shape); }
  bool operator==(const Box&) const = default;
};

/// Whether two boxes of one array share an element.
bool overlap(const Box& a, const Box& b);

/// Elements [begin, begin + count) of a box, in the box's own order.
struct BoxRange {
  Box box;
  std::int64_t begin;
  std::int64_t count;
};

/// Whether two ranges of one array may share an element: they touch the same indices of the first
/// dim.
bool shares_rows(const BoxRange& a, const BoxRange& b);

/// The largest boxes of the array that follow one another in the range: for a matrix the rest of a
/// row, whole rows, the begin of a row. visit(box, at): the box's first element is the range's
/// at-th. Pure.
void for_each_box(const BoxRange& range,
                  const std::function<void(const Box& box, std::int64_t at)>& visit);

/// The runs of the range that are contiguous in `array`. visit(begin, at, count): elements [begin,
/// begin + count) of the array are [at, at + count) of the range. Pure.
using VisitRun = std::function<void(std::int64_t begin, std::int64_t at, std::int64_t count)>;
void for_each_run(const Shape& array, const BoxRange& range, const VisitRun& visit);

/// The elements that two ranges of boxes of one array share, in runs that are contiguous in both.
/// visit(a, b, count): elements [a, a + count) of the first range are [b, b + count) of the second.
/// Pure.
using VisitShared = std::function<void(std::int64_t a, std::int64_t b, std::int64_t count)>;
void for_each_shared(const BoxRange& first, const BoxRange& second, const VisitShared& visit);

}  // namespace llamesh
