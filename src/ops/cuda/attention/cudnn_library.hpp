#pragma once

#include <string>

/// cuDNN is loaded at first use rather than linked, so that one binary runs on nodes with and
/// without it: cudnn_library.cpp defines the <cudnn.h> functions that llamesh and cudnn_frontend
/// call, and forwards each call to the library. (cudnn_frontend can load cuDNN itself, but it then
/// also opens a second CUDA runtime and the driver by file name.)
namespace llamesh::ops::cuda {

struct CudnnLibrary {
  /// Null if cuDNN cannot be used; none of its functions may then be called.
  void* handle = nullptr;
  /// "cuDNN 9.19.0", or the reason it cannot be used.
  std::string text;
};
const CudnnLibrary& cudnn_library();

}  // namespace llamesh::ops::cuda
