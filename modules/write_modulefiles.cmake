# Run by `cmake --install`: writes the modulefiles with the prefix that users will see: --prefix
# without DESTDIR. Lua and Tcl have separate folders, because a site's MODULEPATH lists folders. In
# one folder, Environment Modules would take VERSION.lua for another version if it is set not to
# read every file's first line (mcookie_check). Lmod reads both folders.
get_filename_component(LLAMESH_ROOT "${CMAKE_INSTALL_PREFIX}" ABSOLUTE)

set(LLAMESH_DEPENDENCIES_LUA "")
set(LLAMESH_DEPENDENCIES_TCL "")
foreach(dependency IN LISTS LLAMESH_MODULE_DEPENDENCIES)
  string(APPEND LLAMESH_DEPENDENCIES_LUA "depends_on(\"${dependency}\")\n")
  string(APPEND LLAMESH_DEPENDENCIES_TCL "needs ${dependency}\n")
endforeach()
if(LLAMESH_DEPENDENCIES_TCL)
  # On unload, depends-on keeps what the user had loaded. Environment Modules has it since 5.1.
  string(PREPEND LLAMESH_DEPENDENCIES_TCL "proc needs {name} {
    if {[llength [info commands depends-on]]} {depends-on $name} else {module load $name}
}
")
endif()

function(llamesh_modulefile template path)
  set(file "$ENV{DESTDIR}${LLAMESH_ROOT}/${path}")
  message(STATUS "Installing: ${file}")
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${template} "${file}" @ONLY)
  list(APPEND CMAKE_INSTALL_MANIFEST_FILES "${LLAMESH_ROOT}/${path}")
  set(CMAKE_INSTALL_MANIFEST_FILES "${CMAKE_INSTALL_MANIFEST_FILES}" PARENT_SCOPE)
endfunction()
llamesh_modulefile(llamesh.tcl.in share/modulefiles/llamesh/${LLAMESH_VERSION})
llamesh_modulefile(llamesh.lua.in share/lmod/modulefiles/llamesh/${LLAMESH_VERSION}.lua)
