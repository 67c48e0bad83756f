# Sourced by modules.sh: the Lua modulefile, and the Tcl one too, which Lmod also reads.

for module_command in "${LMOD_CMD:-}" /usr/share/lmod/lmod/libexec/lmod \
  "$source/build/unpacked/lmod/usr/share/lmod/lmod/libexec/lmod" none; do
  if [[ -n $module_command && -x $module_command ]]; then break; fi
done
if [[ $module_command == none ]] || ! "$module_command" bash --version >/dev/null 2>&1; then
  echo "SKIPPED: no Lmod that runs (scripts/setup.sh unpacks one)"
  exit 77
fi
source "$here/as_user.sh"

other_version_takes_its_place() {  # FOLDER-OF-BOTH
  expect "the other version takes its place" "$1" \
    "{ module load llamesh/$version; module load llamesh/99.0; } >/dev/null 2>&1
     echo \$PATH; echo \$LOADEDMODULES" \
    "/opt/other/bin:$clean_path"$'\nllamesh/99.0'
  expect "or is refused where the site wants that" "$1" \
    "export LMOD_DISABLE_SAME_NAME_AUTOSWAP=yes; module load llamesh/$version
     if module load llamesh/99.0 2>/dev/null; then echo both; fi; echo \$LOADEDMODULES" "llamesh/$version"
}

also_under_another_name() {  # FOLDER-OF-BOTH, in Lua
  mkdir "$1/apps"
  cp -r "$1/llamesh" "$1/apps/llamesh"
  expect "only one is loaded, whatever its name" "$1" \
    "{ module load llamesh/$version; module load apps/llamesh/99.0; } >/dev/null 2>&1; echo \$LOADEDMODULES" \
    "apps/llamesh/99.0"
}

prefix=$work/prefix
install_to "$prefix"
for folder in share/lmod/modulefiles share/modulefiles; do
  suffix=""
  if [[ $folder == */lmod/* ]]; then suffix=.lua; fi
  seen_loaded_and_unloaded "$prefix" "$prefix/$folder"
  other_version_takes_its_place "$(two_versions "$prefix" $folder "$suffix")"
  dependencies_come_and_go $folder
done
also_under_another_name "$work/two/share/lmod/modulefiles"
