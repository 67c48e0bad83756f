#!/usr/bin/env bash
# Writes the King James Bible (public domain, Debian's bible-kjv) as FOLDER/bible-train.txt and, its
# last 5 %, FOLDER/bible-validation.txt; and FOLDER/bible.model, a SentencePiece vocabulary of 4096
# made from the training text (Debian's sentencepiece).
#   scripts/demo_corpus.sh FOLDER
set -euo pipefail

folder=$1
if [[ -s $folder/bible-train.txt && -s $folder/bible-validation.txt && -s $folder/bible.model ]]; then exit 0; fi
bible=$(PATH=$PATH:/usr/games command -v bible) || {
  echo "The program 'bible' is missing: apt-get install bible-kjv." >&2
  exit 1
}
command -v spm_train >/dev/null || {
  echo "The program 'spm_train' is missing: apt-get install sentencepiece." >&2
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
# The text is not normalized, and line ends become bytes, so that decoding restores it exactly. The
# model contains its options: names without a folder and one thread make it the same file
# everywhere.
(cd "$work" && spm_train --input=train --model_prefix=bible --model_type=bpe --vocab_size=4096 --byte_fallback \
  --normalization_rule_name=identity --remove_extra_whitespaces=false --num_threads=1 --minloglevel=1)
mv "$work/train" "$folder/bible-train.txt"
mv "$work/validation" "$folder/bible-validation.txt"
mv "$work/bible.model" "$folder/bible.model"
