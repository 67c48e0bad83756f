#include "ops/cpu/parallel.hpp"

#include <omp.h>

namespace llamesh::ops::cpu {

int max_threads() {
  return omp_get_max_threads();
}

}  // namespace llamesh::ops::cpu
