#include "core/box.hpp"

#include <algorithm>
#include <functional>
#include <numeric>

namespace llamesh {
namespace {

/// Sets `index` to the multi-dim index of an element.
void set_index(Shape& index, std::int64_t element, const Shape& array) {
  index.resize(array.size());
  for (std::size_t d = array.size(); d-- > 0;) {
    index[d] = element % array[d];
    element /= array[d];
  }
}

/// Returns the multi-dim index of an element.
Shape index_of(std::int64_t element, const Shape& array) {
  Shape index;
  set_index(index, element, array);
  return index;
}

std::int64_t element_of(const Shape& index, const Shape& array) {
  std::int64_t element = 0;
  for (std::size_t d = 0; d < array.size(); ++d) element = element * array[d] + index[d];
  return element;
}

std::int64_t element_of(const Shape& index, const Box& box) {
  std::int64_t element = 0;
  for (std::size_t d = 0; d < index.size(); ++d)
    element = element * box.shape[d] + index[d] - box.begin[d];
  return element;
}

Box intersection(const Box& a, const Box& b) {
  Box both;
  for (std::size_t d = 0; d < a.shape.size(); ++d) {
    const auto begin = std::max(a.begin[d], b.begin[d]);
    const auto end = std::min(a.begin[d] + a.shape[d], b.begin[d] + b.shape[d]);
    both.begin.push_back(begin);
    both.shape.push_back(std::max<std::int64_t>(end - begin, 0));
  }
  return both;
}

/// Returns the rows (first dim) that a range touches, with all columns in its box.
Box rows_of(const BoxRange& range) {
  Box rows = range.box;
  if (rows.shape.empty() || range.count == 0) return rows;
  const std::int64_t row = rows.numel() / rows.shape[0];
  const std::int64_t first = range.begin / row;
  const std::int64_t last = (range.begin + range.count - 1) / row;
  rows.begin[0] += first;
  rows.shape[0] = last - first + 1;
  return rows;
}

}  // namespace

std::int64_t numel(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

bool overlap(const Box& a, const Box& b) {
  return intersection(a, b).numel() > 0;
}

bool shares_rows(const BoxRange& a, const BoxRange& b) {
  const auto first = [](const BoxRange& r) {
    return r.box.begin[0] + r.begin / (r.box.numel() / r.box.shape[0]);
  };
  const auto last = [](const BoxRange& r) {
    return r.box.begin[0] + (r.begin + r.count - 1) / (r.box.numel() / r.box.shape[0]);
  };
  return a.count > 0 && b.count > 0 && first(a) <= last(b) && first(b) <= last(a);
}

void for_each_box(const BoxRange& range,
                  const std::function<void(const Box& box, std::int64_t at)>& visit) {
  const auto& shape = range.box.shape;
  Box box;
  for (std::int64_t at = 0; at < range.count;) {
    set_index(box.begin, range.begin + at, shape);
    box.shape.assign(shape.size(), 1);
    // Extend outwards while whole lines in dim d begin here and fit into the rest.
    std::size_t d = shape.size() - 1;
    std::int64_t line = 1;  // elements per index in dim d
    while (d > 0 && box.begin[d] == 0 && line * shape[d] <= range.count - at) {
      box.shape[d] = shape[d];
      line *= shape[d--];
    }
    box.shape[d] = std::min(shape[d] - box.begin[d], (range.count - at) / line);
    for (std::size_t i = 0; i < shape.size(); ++i) box.begin[i] += range.box.begin[i];
    visit(box, at);
    at += box.numel();
  }
}

void for_each_run(const Shape& array, const BoxRange& range, const VisitRun& visit) {
  const auto& shape = range.box.shape;
  // From the last dim outwards, lines are contiguous up to the first partial one.
  std::int64_t line = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    line *= shape[d];
    if (shape[d] != array[d]) break;
  }
  for (std::int64_t at = 0; at < range.count;) {
    const std::int64_t element = range.begin + at;
    const std::int64_t count = std::min(range.count - at, line - element % line);
    Shape index = index_of(element, shape);
    for (std::size_t d = 0; d < index.size(); ++d) index[d] += range.box.begin[d];
    visit(element_of(index, array), at, count);
    at += count;
  }
}

void for_each_shared(const BoxRange& first, const BoxRange& second, const VisitShared& visit) {
  const Box both = intersection(rows_of(first), rows_of(second));
  if (both.numel() == 0 || first.count == 0 || second.count == 0) return;
  // Elements are in the same order up to the first dim that is cut differently.
  Shape lines = both.shape;
  std::int64_t line = 1;
  for (std::size_t d = lines.size(); d-- > 0;) {
    line *= lines[d];
    lines[d] = 1;
    if (both.shape[d] != first.box.shape[d] || both.shape[d] != second.box.shape[d]) break;
  }
  const std::int64_t count = llamesh::numel(lines);
  for (std::int64_t i = 0; i < count; ++i) {
    Shape index = index_of(i, lines);
    for (std::size_t d = 0; d < index.size(); ++d) index[d] += both.begin[d];
    const std::int64_t a = element_of(index, first.box) - first.begin;
    const std::int64_t b = element_of(index, second.box) - second.begin;
    const std::int64_t skip = std::max({std::int64_t{0}, -a, -b});
    const std::int64_t end = std::min({line, first.count - a, second.count - b});
    if (skip < end) visit(a + skip, b + skip, end - skip);
  }
}

}  // namespace llamesh
