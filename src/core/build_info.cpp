#include "core/process.hpp"

namespace llamesh {

const char* version() {
  return LLAMESH_VERSION;
}
const char* commit() {
  return LLAMESH_COMMIT;
}

}  // namespace llamesh
