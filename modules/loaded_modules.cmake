# llamesh_loaded_modules(RESULT LOADED): selects the modules in LOADED (as in $LOADEDMODULES,
# separated by colons) that a run needs too, in their order. Sites name modules as they like, so
# this looks for parts of names. It ignores versions, which may contain a compiler's name without
# meaning the compiler. Compilers count because in a module hierarchy MPI is visible only once its
# compiler is loaded.
function(llamesh_loaded_modules result loaded)
  set(wanted "gcc|gnu|clang|llvm|oneapi|compiler|prgenv|mpi|mvapich|hdf5|cuda|nccl")
  string(REPLACE ":" ";" loaded "${loaded}")
  set(found "")
  foreach(module IN LISTS loaded)
    string(REGEX REPLACE "(.)/[^/]*$" "\\1" name "${module}")
    string(TOLOWER "${name}" name)
    if(name MATCHES "${wanted}")
      list(APPEND found "${module}")
    endif()
  endforeach()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()
