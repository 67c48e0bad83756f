# Flags common to everything of ours.
add_library(llamesh_flags INTERFACE)
set(cxx $<COMPILE_LANGUAGE:CXX>)  # nvcc has flags of its own
set(warnings -Wall -Wextra -Wconversion -Wnon-virtual-dtor)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # A source may name its locals as another one its unnamed namespace's, and to g++ all but the unity itself is a header.
  list(APPEND warnings -Wshadow=local -Wno-subobject-linkage)
endif()
if(LLAMESH_WERROR)
  list(APPEND warnings -Werror)
endif()
target_compile_options(llamesh_flags INTERFACE "$<${cxx}:${warnings}>")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # Its own AVX-512 headers raise the first (GCC bug 105593), "text" + string the second (105651).
  target_compile_options(llamesh_flags INTERFACE $<${cxx}:-Wno-maybe-uninitialized;-Wno-restrict>)
endif()
target_include_directories(llamesh_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
if(LLAMESH_ARCH)
  target_compile_options(llamesh_flags INTERFACE $<${cxx}:-march=${LLAMESH_ARCH}>)
endif()
if(LLAMESH_SANITIZE)
  # A target with the property LLAMESH_NOT_SANITIZED is compiled as without sanitizers.
  set(sanitized $<AND:${cxx},$<NOT:$<BOOL:$<TARGET_PROPERTY:LLAMESH_NOT_SANITIZED>>>>)
  if(NOT LLAMESH_FUZZ)
    target_compile_options(llamesh_flags INTERFACE $<${sanitized}:-w>)  # warnings are the business of the other builds
  endif()
  target_compile_options(llamesh_flags INTERFACE $<${sanitized}:-fsanitize=${LLAMESH_SANITIZE}\;-fno-omit-frame-pointer>)
  target_link_options(llamesh_flags INTERFACE -fsanitize=${LLAMESH_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND LLAMESH_SANITIZE MATCHES "undefined")
    # g++ checks the pointer of every member access and call for these, which takes half of the time of the build.
    # A null pointer that is used ends the process under AddressSanitizer too; the preset fuzz, with clang, has all of
    # them for the parsers.
    target_compile_options(llamesh_flags INTERFACE $<${sanitized}:-fno-sanitize=null,alignment,vptr>)
  endif()
endif()

# llamesh_optimize_less(NAME): for a layer without numerical loops. With -O1 it builds in two thirds of the time of -O3.
function(llamesh_optimize_less name)
  if(LLAMESH_SANITIZE)
    target_compile_options(llamesh_${name} PRIVATE -O0)
  else()
    target_compile_options(llamesh_${name} PRIVATE $<${cxx}:-O1>)
  endif()
endfunction()

# llamesh_layer(NAME [USES layer-or-library...] [PRIVATE library...] [CUDA library...])
# One target a layer: all .cpp below src/NAME. USES names the layers below it and nothing else;
# scripts/check_layers.sh holds includes and symbols to it. Its folders cuda/ and nccl/ are compiled with the GPU
# backend, and linked with what CUDA names; without it NAME/*_absent.cpp are compiled instead.
function(llamesh_layer name)
  cmake_parse_arguments(PARSE_ARGV 1 LAYER "" "" "USES;PRIVATE;CUDA")
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cpp
                                          ${CMAKE_CURRENT_SOURCE_DIR}/${name}/*.cu)
  if(LLAMESH_HAS_CUDA)
    list(FILTER sources EXCLUDE REGEX "_absent\\.cpp$")
    list(APPEND LAYER_PRIVATE ${LAYER_CUDA})
  else()
    list(FILTER sources EXCLUDE REGEX "/(cuda|nccl)/")
  endif()
  add_library(llamesh_${name} STATIC ${sources})
  list(TRANSFORM LAYER_USES PREPEND llamesh_)
  target_link_libraries(llamesh_${name} PUBLIC llamesh_flags ${LAYER_USES} PRIVATE ${LAYER_PRIVATE})
  if(name MATCHES "^(train|plan|config)$" OR (LLAMESH_SANITIZE AND name STREQUAL checkpoint))
    llamesh_optimize_less(${name})
  endif()
endfunction()

# llamesh_floors(LAYER FOLDER...)
# The folders of src/LAYER, all of them, lowest first. A file may include its own folder and those below it; the files
# beside the folders stand above them all. scripts/check_layers.sh checks it.
function(llamesh_floors layer)
  foreach(folder ${ARGN})
    if(NOT IS_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/${layer}/${folder})
      message(FATAL_ERROR "llamesh_floors(${layer}): src/${layer} has no folder ${folder}")
    endif()
  endforeach()
endfunction()
