# The GPU backend: LLAMESH_HAS_CUDA says whether this build has it. A build without it knows nothing of CUDA.
set(LLAMESH_CUDA AUTO CACHE STRING "GPU backend: AUTO (where CUDA and NCCL are found), ON or OFF")
set_property(CACHE LLAMESH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(LLAMESH_HAS_CUDA FALSE)
if(LLAMESH_CUDA STREQUAL "OFF")
  return()
endif()

# Before the language is enabled: Ampere and Hopper, with PTX for what comes later.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 80-real 90a-real 90-virtual)
endif()
include(CheckLanguage)
check_language(CUDA)
find_path(NCCL_INCLUDE_DIR nccl.h HINTS /usr/local/cuda/include $ENV{NCCL_HOME}/include)
find_library(NCCL_LIBRARY nccl HINTS /usr/local/cuda/lib64 $ENV{NCCL_HOME}/lib)
if(NOT CMAKE_CUDA_COMPILER OR NOT NCCL_INCLUDE_DIR OR NOT NCCL_LIBRARY)
  if(LLAMESH_CUDA STREQUAL "AUTO")
    message(STATUS "No GPU backend: nvcc is ${CMAKE_CUDA_COMPILER}, NCCL is ${NCCL_LIBRARY}")
    return()
  endif()
  message(FATAL_ERROR "LLAMESH_CUDA=ON needs nvcc (found: ${CMAKE_CUDA_COMPILER}) and NCCL (found: ${NCCL_LIBRARY}); "
                      "set CMAKE_CUDA_COMPILER, NCCL_HOME")
endif()

enable_language(CUDA)
# CMake 3.25 does not know how nvcc spells C++20.
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_FLAGS "${CMAKE_CUDA_FLAGS} --expt-relaxed-constexpr -DFMT_USE_CONSTEXPR=1")
set(CMAKE_CUDA_FLAGS_RELWITHDEBINFO "-O3 -lineinfo -DNDEBUG")
find_package(CUDAToolkit REQUIRED)
add_library(NCCL::nccl UNKNOWN IMPORTED)
set_target_properties(NCCL::nccl PROPERTIES IMPORTED_LOCATION ${NCCL_LIBRARY}
                                            INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
target_link_libraries(NCCL::nccl INTERFACE CUDA::cudart_static)
set(LLAMESH_HAS_CUDA TRUE)
