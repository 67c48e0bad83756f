# Sourced by lmod.sh and environment_modules.sh, which define $module_command: what a user does with the
# modules, in a clean shell each time.

# A shell in which `module` is defined as the module system's own start-up files do.
session() {  # MODULEPATH SCRIPT
  clean MODULEPATH="$1" module_command="$module_command" bash --noprofile --norc -c "module() { eval \"\$(\$module_command bash \"\$@\")\"; }
$2" 2>&1
}

expect() {  # WHAT MODULEPATH SCRIPT PATTERN: the script ends well and prints what the pattern matches
  local output
  output=$(session "$2" "$3") || fail "$1: exit code $?, $output"
  # shellcheck disable=SC2053
  [[ $output == $4 ]] || fail "$1: printed '$output', not '$4'"
}

# Another version of llamesh, another place. Prints the folder that has both for MODULEPATH.
two_versions() {  # PREFIX FOLDER SUFFIX
  mkdir -p "$work/two/$2/llamesh"
  cp "$1/$2/llamesh/$version$3" "$work/two/$2/llamesh/"
  sed "s#$1#/opt/other#g" "$1/$2/llamesh/$version$3" >"$work/two/$2/llamesh/99.0$3"
  echo "$work/two/$2"
}

seen_loaded_and_unloaded() {  # PREFIX MODULEPATH
  local script
  expect "avail" "$2" 'module avail llamesh' "*llamesh/$version*"
  expect "one version only" "$2" 'module -t avail llamesh 2>&1 | grep -c "llamesh/."' 1
  expect "show" "$2" 'module show llamesh' "*PATH*$1*"
  expect "help" "$2" 'module help llamesh' '*llamesh --version*'
  expect "whatis" "$2" 'module whatis llamesh' '*Built with*MPI*HDF5*'

  expect "load" "$2" 'module load llamesh; echo $PATH; echo $LLAMESH_ROOT; echo ${LD_LIBRARY_PATH-none}' \
    "$1/bin:$clean_path"$'\n'"$1"$'\nnone'
  expect "load twice" "$2" 'module load llamesh; module load llamesh; echo $PATH' "$1/bin:$clean_path"
  expect "--version" "$2" 'module load llamesh; llamesh --version' "llamesh $version *"
  expect "unload" "$2" 'module load llamesh; module unload llamesh; echo $PATH; echo ${LLAMESH_ROOT-none}' \
    "$clean_path"$'\nnone'

  script="module load llamesh && cd '$work/home' && cp -r \$LLAMESH_ROOT/share/llamesh/inputs . &&
    '$here/../mpirun.sh' 1 llamesh train inputs/tiny.yaml train.steps=2 && rm -r runs inputs"
  expect "train from the installed inputs" "$2" "$script" '*'
}

dependencies_come_and_go() {  # FOLDER
  local prefix=$work/depends folder=$work/depends/$1 other=$work/others
  install_to "$prefix" "-DLLAMESH_MODULE_DEPENDENCIES=a-compiler/12;an-mpi/4.1"
  mkdir -p "$other/a-compiler" "$other/an-mpi"
  printf '#%%Module\nsetenv A_COMPILER here\n' >"$other/a-compiler/12"
  if session "$folder:$other" 'module load llamesh' >"$work/log"; then
    fail "loaded without an-mpi: $(cat "$work/log")"
  fi
  grep -q an-mpi "$work/log" || fail "an-mpi is missing and not named: $(cat "$work/log")"

  printf '#%%Module\nsetenv AN_MPI here\n' >"$other/an-mpi/4.1"
  local loaded='echo "${A_COMPILER-no} ${AN_MPI-no} ${LLAMESH_ROOT-no}"'
  expect "dependencies are loaded" "$folder:$other" "module load llamesh 2>/dev/null; $loaded" "here here $prefix"
  expect "and unloaded" "$folder:$other" \
    "{ module load llamesh; module unload llamesh; } 2>/dev/null; $loaded" "no no no"
  expect "but not what the user loaded" "$folder:$other" \
    "{ module load an-mpi; module load llamesh; module unload llamesh; } 2>/dev/null; $loaded" "no here no"
  rm -r "$prefix" "$other"
}
