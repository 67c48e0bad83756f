#!/usr/bin/env bash
# completion.sh LLAMESH: what bash completes after some words.
set -euo pipefail
llamesh=$1

# shellcheck disable=SC1090
source <("$llamesh" completion bash)

# completes WORD...: prints what the last word may become.
completes() {
  COMP_WORDS=(llamesh "$@")
  COMP_CWORD=$#
  COMPREPLY=()
  _llamesh
  echo "${COMPREPLY[*]}"
}

# expect WORDS TEXT: checks that TEXT completes WORDS.
expect() {
  local found words
  read -ra words <<<"$1"
  [[ $1 == *' ' || -z $1 ]] && words+=("")
  found=$(completes "${words[@]}")
  [[ $found == "$2" ]] || { echo "FAILED: '$1' is completed by '$found', not by '$2'"; exit 1; }
}

expect tr train
expect "help" help
expect "bench g" gemm
expect "bench gemm --dev" --device
expect "train --device " "auto cpu cuda"
expect "train --device c" "cpu cuda"
expect "train --print-m" --print-mesh
expect "train inputs/t" ""        # the shell's own file names
expect "plan a.yaml --ranks " ""  # a number
expect "completion " ""
expect --v --version
[[ $(completes "") == train\ *\ completion ]] || { echo "FAILED: commands: $(completes "")"; exit 1; }

zsh=$("$llamesh" completion zsh)
for text in "#compdef llamesh" "'train:Train a model (under mpirun or srun)'" "'--device:auto (the default), cpu or cuda'" \
  "'llamesh train --device') choices=( auto cpu cuda )"; do
  [[ $zsh == *"$text"* ]] || { echo "FAILED: zsh's script lacks $text: $zsh"; exit 1; }
done
if command -v zsh >/dev/null; then
  "$llamesh" completion zsh | zsh -n
fi
