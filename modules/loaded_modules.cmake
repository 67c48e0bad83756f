# llamesh_loaded_modules(RESULT LOADED): of the modules in LOADED (as in $LOADEDMODULES, colons between
# them) those that a run needs too, in their order. Sites name modules as they like, so this looks
# for parts of names, and not at versions, where the names of compilers stand without meaning one.
# Compilers count because in a hierarchy of modules MPI is only seen once its compiler is loaded.
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
