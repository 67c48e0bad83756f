# What `cmake --install` puts below the prefix:
#   bin/llamesh
#   share/llamesh/                           inputs, slurm, launchers, reframe, docs, README.md, CONTRIBUTING.md, LICENSE
#   share/bash-completion/completions/llamesh, share/zsh/site-functions/_llamesh
#   share/modulefiles/llamesh/VERSION        for Environment Modules (Tcl)
#   share/lmod/modulefiles/llamesh/VERSION.lua   for Lmod
include(${CMAKE_CURRENT_LIST_DIR}/../modules/loaded_modules.cmake)

# install(TARGETS llamesh) stands beside the target. Libraries from outside the system's own folders
# are found where the build found them, and those that a site puts into lib/ beside bin/ before them.
set_target_properties(llamesh PROPERTIES INSTALL_RPATH "\$ORIGIN/../lib" INSTALL_RPATH_USE_LINK_PATH ON)
install(DIRECTORY inputs slurm launchers packaging/reframe docs DESTINATION share/llamesh USE_SOURCE_PERMISSIONS OPTIONAL)
install(FILES README.md CONTRIBUTING.md LICENSE DESTINATION share/llamesh)

# The program itself writes its completions, if it runs here: it may have been built for other CPUs.
function(llamesh_install_completion shell file)
  get_filename_component(folder ${file} DIRECTORY)
  set(script ${PROJECT_BINARY_DIR}/completion.${shell})
  install(CODE "
    execute_process(COMMAND [==[$<TARGET_FILE:llamesh>]==] completion ${shell} OUTPUT_FILE [==[${script}]==]
                    RESULT_VARIABLE failed ERROR_QUIET)
    if(failed)
      message(STATUS \"No completion for ${shell}: llamesh does not run here (\${failed})\")
      file(REMOVE [==[${script}]==])
    endif()")
  get_filename_component(name ${file} NAME)
  install(FILES ${script} DESTINATION ${folder} RENAME ${name} OPTIONAL)
endfunction()
llamesh_install_completion(bash share/bash-completion/completions/llamesh)
llamesh_install_completion(zsh share/zsh/site-functions/_llamesh)

# The modules that the build was made with, so that users get the same; a list like gcc/12;openmpi/4.1.
llamesh_loaded_modules(loaded "$ENV{LOADEDMODULES}")
set(LLAMESH_MODULE_DEPENDENCIES "${loaded}" CACHE STRING
    "Modules that llamesh's modulefiles load (first value: the compiler, MPI, HDF5 and CUDA ones now loaded)")
if(LLAMESH_MODULE_DEPENDENCIES)
  message(STATUS "llamesh's modulefiles will load ${LLAMESH_MODULE_DEPENDENCIES}")
endif()

# Library and version, e.g. Open MPI v4.1.4; the MPI standard's version only if the library could not be queried.
string(REGEX MATCH "^[^,\n\r]+" mpi_version "${MPI_C_LIBRARY_VERSION_STRING}")
if(NOT mpi_version)
  set(mpi_version "MPI ${MPI_C_VERSION}")
endif()
string(REGEX REPLACE "[ \t]+" " " mpi_version "${mpi_version}")

# They are written at install time, because --prefix may differ from the prefix at build time.
set(built_with "${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}, ${mpi_version}, HDF5 ${HDF5_VERSION}")
install(CODE "
  set(LLAMESH_VERSION [==[${PROJECT_VERSION}]==])
  set(LLAMESH_BUILT_WITH [==[${built_with}]==])
  set(LLAMESH_ARCH [==[${LLAMESH_ARCH}]==])
  if(NOT DEFINED LLAMESH_MODULE_DEPENDENCIES)
    set(LLAMESH_MODULE_DEPENDENCIES [==[${LLAMESH_MODULE_DEPENDENCIES}]==])
  endif()
  include([==[${PROJECT_SOURCE_DIR}/modules/write_modulefiles.cmake]==])")
