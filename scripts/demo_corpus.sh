#!/usr/bin/env bash
# Writes the King James Bible (public domain, Debian's bible-kjv) as FOLDER/bible-train.txt and, its
# last 5 %, FOLDER/bible-validation.txt.
#   scripts/demo_corpus.sh FOLDER
set -euo pipefail

folder=$1
if [[ -s $folder/bible-train.txt && -s $folder/bible-validation.txt ]]; then exit 0; fi
bible=$(PATH=$PATH:/usr/games command -v bible) || {
  echo "The program 'bible' is missing: apt-get install bible-kjv." >&2
  exit 1
}
mkdir -p "$folder"
work=$(mktemp -d "$folder/partial.XXXXXX")
trap 'rm -rf "$work"' EXIT
"$bible" -f 'gen1:1-rev22:21' | sed 's/^[^ ]* //' >"$work/whole"  # a verse a line, without its number
bytes=$(wc -c <"$work/whole")
if ((bytes < 4000000)); then
  echo "The Bible has only $bytes bytes here, where 4.1 million are expected: reinstall bible-kjv." >&2
  exit 1
fi
tail -c $((bytes / 20)) "$work/whole" >"$work/validation"
head -c $((bytes - bytes / 20)) "$work/whole" >"$work/train"
mv "$work/train" "$folder/bible-train.txt"
mv "$work/validation" "$folder/bible-validation.txt"
