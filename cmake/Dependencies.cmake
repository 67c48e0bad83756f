# Everything that llamesh takes from others, all of it packaged by Debian 12 (docs/dependencies.md).
find_package(Threads REQUIRED)
# None comes with a CMake package.
foreach(library IN ITEMS sentencepiece:sentencepiece_processor.h pcre2-8:pcre2.h utf8proc:utf8proc.h)
  string(REPLACE ":" ";" library ${library})
  list(GET library 0 name)
  list(GET library 1 header)
  string(MAKE_C_IDENTIFIER "LLAMESH_${name}" variable)
  find_path(${variable}_INCLUDE_DIR ${header} REQUIRED)
  find_library(${variable}_LIBRARY ${name} REQUIRED)
  add_library(${name}::${name} UNKNOWN IMPORTED)
  set_target_properties(${name}::${name} PROPERTIES IMPORTED_LOCATION ${${variable}_LIBRARY}
                                                    INTERFACE_INCLUDE_DIRECTORIES ${${variable}_INCLUDE_DIR})
endforeach()
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
if(LLAMESH_FUZZ)
  return()  # the rest is not of the parsers
endif()

find_package(CLI11 REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
set(MPI_DETERMINE_LIBRARY_VERSION ON)  # for the modulefiles
find_package(MPI REQUIRED COMPONENTS C)
find_path(PROTOZERO_INCLUDE_DIR protozero/pbf_builder.hpp REQUIRED)
find_path(ISAL_INCLUDE_DIR isa-l/crc.h REQUIRED)
find_library(ISAL_LIBRARY isal REQUIRED)
add_library(isal::isal UNKNOWN IMPORTED)
set_target_properties(isal::isal PROPERTIES IMPORTED_LOCATION ${ISAL_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${ISAL_INCLUDE_DIR})
# dnnl's own CMake package asks for the OpenCL headers, which a CPU build does not need.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(DNNL::dnnl UNKNOWN IMPORTED)
set_target_properties(DNNL::dnnl PROPERTIES IMPORTED_LOCATION ${DNNL_LIBRARY}
                                            INTERFACE_INCLUDE_DIRECTORIES ${DNNL_INCLUDE_DIR})
set(HDF5_PREFER_PARALLEL ON)
find_package(HDF5 REQUIRED COMPONENTS C)
if(NOT HDF5_IS_PARALLEL)
  message(FATAL_ERROR "HDF5 at ${HDF5_INCLUDE_DIRS} is not parallel: install libhdf5-openmpi-dev")
endif()
find_path(XXHASH_INCLUDE_DIR xxhash.h REQUIRED)

# The C++ bindings of Open MPI are gone from MPI and break links; the C interface is all we use.
target_compile_definitions(MPI::MPI_C INTERFACE OMPI_SKIP_MPICXX=1 MPICH_SKIP_MPICXX=1)
