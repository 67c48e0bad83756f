# Sourced by modules.sh: the Tcl modulefile with Environment Modules.

for module_command in "${MODULES_CMD:-}" /usr/lib/*/modulecmd.tcl /usr/share/Modules/libexec/modulecmd.tcl \
  "$source"/build/unpacked/environment-modules/usr/lib/*/modulecmd.tcl none; do
  if [[ -n $module_command && -x $module_command ]]; then break; fi
done
if [[ $module_command == none ]] || ! "$module_command" bash --version >/dev/null 2>&1; then
  echo "SKIPPED: no Environment Modules that run (scripts/setup.sh unpacks them)"
  exit 77
fi
source "$here/as_user.sh"

other_version_is_refused() {  # FOLDER-OF-BOTH
  expect "the other version is refused" "$1" \
    "module load llamesh/$version
     if module load llamesh/99.0 2>/dev/null; then echo both; fi; echo \$PATH; echo \$LOADEDMODULES" \
    "$prefix/bin:$clean_path"$'\n'"llamesh/$version"
  expect "switch" "$1" \
    "module load llamesh/$version; module switch llamesh/99.0; echo \$PATH; echo \$LOADEDMODULES" \
    "/opt/other/bin:$clean_path"$'\nllamesh/99.0'
}

prefix=$work/prefix
install_to "$prefix"
seen_loaded_and_unloaded "$prefix" "$prefix/share/modulefiles"
other_version_is_refused "$(two_versions "$prefix" share/modulefiles "")"
dependencies_come_and_go share/modulefiles
