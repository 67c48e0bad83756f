#pragma once

#include <string>

/// cuDNN is opened when it is first asked for, and not linked, so that one program runs on nodes
/// with and without it: cudnn_library.cpp has the functions of <cudnn.h> that llamesh and
/// cudnn_frontend call, and each sends its call on to the library. (cudnn_frontend can load cuDNN
/// by itself, but then also opens a second CUDA runtime and the driver by their file names.)
namespace llamesh::ops::cuda {

struct CudnnLibrary {
  /// Null: it cannot be used, and none of its functions may be called.
  void* handle = nullptr;
  /// "cuDNN 9.19.0", or why it cannot be used.
  std::string text;
};
const CudnnLibrary& cudnn_library();

}  // namespace llamesh::ops::cuda
