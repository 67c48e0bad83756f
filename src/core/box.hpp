#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace llamesh {

/// Array sizes per dim, outermost first; elements are in row-major order.
using Shape = std::vector<std::int64_t>;
std::int64_t numel(const Shape& shape);

/// A rectangular part of an array (HDF5's hyperslab): in each dim d, indices [begin[d], begin[d] +
/// shape[d]).
struct Box {
  Shape begin;
  Shape shape;

  static Box whole(const Shape& array) { return {Shape(array.size(), 0), array}; }
  std::int64_t numel() const { return llamesh::numel(shape); }
  bool operator==(const Box&) const = default;
};

/// Returns true if two boxes in one array share an element.
bool overlap(const Box& a, const Box& b);

/// Elements [begin, begin + count) in a box, in the box's own order.
struct BoxRange {
  Box box;
  std::int64_t begin;
  std::int64_t count;
};

/// Returns true if two ranges in one array may share an element: they touch the same indices in the
/// first dim.
bool shares_rows(const BoxRange& a, const BoxRange& b);

/// Splits a range into the largest consecutive boxes: for a matrix the rest of a row, whole rows,
/// the start of a row. visit(box, at): the box begins at range element `at`. Pure.
void for_each_box(const BoxRange& range,
                  const std::function<void(const Box& box, std::int64_t at)>& visit);

/// Splits a range into runs that are contiguous in `array`. visit(begin, at, count): array elements
/// [begin, begin + count) are range elements [at, at + count). Pure.
using VisitRun = std::function<void(std::int64_t begin, std::int64_t at, std::int64_t count)>;
void for_each_run(const Shape& array, const BoxRange& range, const VisitRun& visit);

/// Visits the elements shared by two box ranges in one array, in runs that are contiguous in both.
/// visit(a, b, count): elements [a, a + count) in the first range are [b, b + count) in the second.
/// Pure.
using VisitShared = std::function<void(std::int64_t a, std::int64_t b, std::int64_t count)>;
void for_each_shared(const BoxRange& first, const BoxRange& second, const VisitShared& visit);

}  // namespace llamesh
