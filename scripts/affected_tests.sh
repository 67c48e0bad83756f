#!/usr/bin/env bash
# Prints the folders of tests/ whose results may differ from those in a commit: their own files, the layer
# under test or one that it uses have changed since then, committed or not. A change to what all builds
# share affects every folder, and so does a commit that is not known. Needs no build.
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
uses[runs]=train uses[storage]=checkpoint uses[fuzz]=app uses[gpu]=ops uses[cuda_emulator]=ops uses[cuda_fake]=train

if ! git rev-parse -q --verify "$base^{commit}" >/dev/null; then printf '%s\n' "${order[@]}"; exit; fi
changed=$(git diff --name-only "$base"; git ls-files --others --exclude-standard)
if grep -qE '^(CMakeLists\.txt|CMakePresets\.json|cmake/|src/CMakeLists\.txt|tests/[^/]*\.(txt|[ch]pp)$|scripts/(test_preset|sanitizer))' <<<"$changed"; then
  printf '%s\n' "${order[@]}"
  exit
fi
declare -A affected
for folder in "${order[@]}"; do
  if grep -q "^src/$folder/" <<<"$changed"; then affected[$folder]=yes; fi
  for used in ${uses[$folder]}; do if [[ -n ${affected[$used]:-} ]]; then affected[$folder]=yes; fi; done
done
for folder in "${order[@]}"; do
  if [[ -n ${affected[$folder]:-} ]] || grep -q "^tests/$folder/" <<<"$changed"; then echo "$folder"; fi
done
