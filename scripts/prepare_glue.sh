#!/usr/bin/env bash
# Prepares GLUE for fine-tuning: ids of a corpus's vocabulary, labels, and what each task is.
#
#   bash scripts/prepare_glue.sh [-g GLUE_DIR] -c CORPUS -o GLUE_BIN [--on-bad-row error|skip] [TASK...]
#
# GLUE_DIR has a folder for each task (CoLA/train.tsv, ...), as GLUE is downloaded; CORPUS is a folder made by
# prepare_corpus.sh; GLUE_BIN receives a folder for each task, complete or not at all. Without TASK, all tasks
# found are prepared. TASK.toml is a task of your own, with its data beside it (README); it needs no GLUE_DIR. A training or dev row with a wrong number of columns or an unknown label is an error, or left
# out and counted (--on-bad-row skip). DRY_RUN=1 prints the command.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi

run_last python -m tupe_fairseq.glue_data "$@"
