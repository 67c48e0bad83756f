#!/usr/bin/env bash
# Prints the folders of tests/ whose results may differ from those in a commit: their own files, the layer
# under test or one that it uses have changed since then, committed or not. A change to what all builds
# share affects every folder, and so does a commit that is not known. "fuzz" is printed only for files that
# its parsers are made of, "threads/LAYER" only for layers with a changed file that starts threads, locks or
# uses atomics. Needs no build.
#   scripts/affected_tests.sh COMMIT
set -euo pipefail
cd "$(dirname "$0")/.."
base=${1:?"usage: scripts/affected_tests.sh COMMIT"}

# What each folder tests, lowest layers first: the layers with those that they use (src/CMakeLists.txt), then the
# folders of tests/ that are not named after a layer.
declare -A uses=([app]="config plan")
order=()
while read -r layer used; do
  order+=("$layer")
  uses[$layer]=$used
done < <(sed 's/#.*//' src/CMakeLists.txt | tr '\n' ' ' | grep -o 'llamesh_layer([^)]*)' |
  sed -E 's/^llamesh_layer\( *//; s/ *\)$//; s/ (PRIVATE|CUDA) .*//; s/ USES / /')
order+=(app runs storage fuzz gpu cuda_emulator cuda_fake)
uses[runs]=train uses[storage]=checkpoint uses[gpu]=ops uses[cuda_emulator]=ops uses[cuda_fake]=train
mapfile -t threaded < <(grep -rlE 'std::(jthread|thread|mutex|atomic|condition_variable)|pthread_' src | sed 's|^src/||; s|\.[a-z]*$||')
threads_in_layers() { sed 's|^\([a-z]*\)/.*|threads/\1|' | sort -u; }

if ! git rev-parse -q --verify "$base^{commit}" >/dev/null; then
  printf '%s\n' "${order[@]}"
  printf '%s\n' "${threaded[@]}" | threads_in_layers
  exit
fi
changed=$(git diff --name-only "$base"; git ls-files --others --exclude-standard)
stems=$(sed -nE 's|^src/(.*)\.[a-z]+$|\1|p' <<<"$changed" | sort -u)
{ grep -xF "$(printf '%s\n' "${threaded[@]}")" <<<"$stems" || true; } | threads_in_layers
if grep -qE '^(CMakeLists\.txt|CMakePresets\.json|cmake/|src/CMakeLists\.txt|tests/[^/]*\.(txt|[ch]pp)$|scripts/(test_preset|sanitizer))' <<<"$changed"; then
  printf '%s\n' "${order[@]}"
  exit
fi
# changes_stem_of PATTERN...: checks that a file of src/ has changed whose path, without its ending, matches one.
changes_stem_of() { grep -qxE "$(printf '%s\n' "$@" | paste -sd'|')" <<<"$stems"; }
declare -A affected
mapfile -t fuzzed < <(sed -n '/foreach(name/,/)/p' tests/fuzz/CMakeLists.txt | grep -oE '[a-z]+/[a-z0-9_/]+')
if changes_stem_of "${fuzzed[@]}" 'tokenizer/.*' 'model/(description|families)/.*'; then affected[fuzz]=yes; fi
for folder in "${order[@]}"; do
  if grep -q "^src/$folder/" <<<"$changed"; then affected[$folder]=yes; fi
  for used in ${uses[$folder]:-}; do if [[ -n ${affected[$used]:-} ]]; then affected[$folder]=yes; fi; done
done
for folder in "${order[@]}"; do
  if [[ -n ${affected[$folder]:-} ]] || grep -q "^tests/$folder/" <<<"$changed"; then echo "$folder"; fi
done
