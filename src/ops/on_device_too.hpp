#pragma once

/// Marks a function that GPU kernels call, too.
#ifdef __CUDACC__
#define LLAMESH_ON_DEVICE_TOO __host__ __device__
#else
#define LLAMESH_ON_DEVICE_TOO
#endif
