# Sourced by modules.sh: what lies below the prefix, and that nothing there needs the folder it was built in.

modulefiles=("share/modulefiles/llamesh/$version" "share/lmod/modulefiles/llamesh/$version.lua")

nothing_of_the_build_is_used() {  # PROGRAM
  local runpath libraries
  runpath=$(readelf -d "$1" | sed -n 's/.*R\(UN\)\{0,1\}PATH.*\[\(.*\)\]/\2/p')
  [[ :$runpath: == *':$ORIGIN/../lib:'* ]] || fail "RUNPATH '$runpath' has no \$ORIGIN/../lib"
  libraries=$(clean ldd "$1")
  [[ $runpath$libraries != *"$build"* ]] || fail "the build folder is used: $runpath $libraries"
  [[ $libraries != *"not found"* ]] || fail "libraries are missing: $libraries"
}

all_is_there() {
  local prefix="$work/a prefix" folder file
  "$cmake" --install "$build" --prefix "$prefix" >"$work/install.log"
  for folder in inputs docs slurm launchers; do
    if [[ -d $source/$folder ]]; then
      diff -r "$source/$folder" "$prefix/share/llamesh/$folder" || fail "$folder is not as in the sources"
    fi
  done
  diff -r "$source/packaging/reframe" "$prefix/share/llamesh/reframe" || fail "reframe is not as in the sources"
  cmp "$source/LICENSE" "$prefix/share/llamesh/LICENSE"
  grep -q '^complete .*llamesh$' "$prefix/share/bash-completion/completions/llamesh" || fail "no completion for bash"
  grep -q '^#compdef llamesh$' "$prefix/share/zsh/site-functions/_llamesh" || fail "no completion for zsh"
  for file in "${modulefiles[@]}"; do
    grep -qF "$prefix" "$prefix/$file" || fail "$file does not name the prefix"
    ! grep -n '@' "$prefix/$file" || fail "$file has a name left to be replaced"
    grep -qxF "$prefix/$file" "$build/install_manifest.txt" || fail "install_manifest.txt lacks $file"
  done
  nothing_of_the_build_is_used "$prefix/bin/llamesh"
}

works_elsewhere() {  # after all_is_there
  mv "$work/a prefix" "$work/moved"
  [[ $(clean "$work/moved/bin/llamesh" --version) == "llamesh $version "* ]] || fail "moved, it does not run"
  # A library in lib/ beside bin/ is taken before the system's.
  local fmt
  fmt=$(ldd "$work/moved/bin/llamesh" | awk '/libfmt/ { print $3 }')
  mkdir "$work/moved/lib"
  cp "$fmt" "$work/moved/lib/"
  [[ $(clean ldd "$work/moved/bin/llamesh") == *"=> $work/moved/bin/../lib/libfmt"* ]] ||
    fail "lib/ is not looked into"
}

destdir_is_not_in_the_modulefiles() {
  local file
  DESTDIR=$work/stage "$cmake" --install "$build" --prefix /opt/llamesh >"$work/install.log"
  [[ -x $work/stage/opt/llamesh/bin/llamesh ]] || fail "DESTDIR is not honored"
  for file in "${modulefiles[@]}"; do
    grep -qF "/opt/llamesh" "$work/stage/opt/llamesh/$file" || fail "$file does not name its prefix"
    ! grep -nF "$work" "$work/stage/opt/llamesh/$file" || fail "$file names DESTDIR"
  done
}

a_relative_prefix_is_made_absolute() {
  (cd "$work" && "$cmake" --install "$build" --prefix here >"$work/install.log")
  grep -qF "{$work/here}" "$work/here/${modulefiles[0]}" || fail "the prefix is relative in the modulefile"
}

# Which of the modules that are loaded while llamesh is configured its own module will load.
dependencies_are_chosen() {  # LOADEDMODULES EXPECTED
  cat >"$work/choose.cmake" <<'END'
include(${SOURCE}/modules/loaded_modules.cmake)
llamesh_loaded_modules(found "${LOADED}")
message("${found}")
END
  same "the choice from '$1'" "$("$cmake" "-DSOURCE=$source" "-DLOADED=$1" -P "$work/choose.cmake" 2>&1)" "$2"
}

all_is_there
works_elsewhere
destdir_is_not_in_the_modulefiles
a_relative_prefix_is_made_absolute
dependencies_are_chosen "" ""
dependencies_are_chosen "git/2.40:gcc/12.2:cmake/3.25:openmpi/4.1.4:hdf5/1.14-mpi" \
  "gcc/12.2;openmpi/4.1.4;hdf5/1.14-mpi"
dependencies_are_chosen "Python/3.10-GCCcore-12:OpenMPI/4.1.4-GCC-12.2.0:mpi/openmpi-x86_64" \
  "OpenMPI/4.1.4-GCC-12.2.0;mpi/openmpi-x86_64"
dependencies_are_chosen "cray-mpich:cudatoolkit/12.2:perl" "cray-mpich;cudatoolkit/12.2"
