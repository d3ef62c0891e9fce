#!/usr/bin/env bash
# Raw text to a corpus for pre-training: clean lines, a vocabulary, and the text as ids.
#
#   bash scripts/prepare_corpus.sh -o CORPUS [-v VOCAB] TEXT...
#
#   TEXT    UTF-8, plain or gzip; a paragraph or sentence a line, a blank line between documents
#   CORPUS  gets spm.model, dict.txt, bin/ (for pretrain.sh) and summary.json; an older corpus there is replaced
#   VOCAB   pieces of the vocabulary (32768)
#
# Further flags go to the Python module, which explains them: python -m tupe_fairseq.corpus -h.
# DRY_RUN=1 prints the command.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi

run_last python -m tupe_fairseq.corpus "$@"
