#!/usr/bin/env bash
# Pre-trains a model on a prepared corpus, with fairseq-train.
#
#   [ARCH=tupe_r_base] [CONFIG=FILE] [NPROC=N] bash scripts/pretrain.sh CORPUS SAVE_DIR [fairseq-train flags]
#
# CORPUS is a folder made by prepare_corpus.sh, or several joined by ":", taken in turn, one an epoch.
# SAVE_DIR receives checkpoints, TensorBoard logs and the vocabulary (dict.txt, spm.model); the same command again
# goes on from the last checkpoint. ARCH is <variant>_<size>, CONFIG a file of flags (default: the recipe of the
# size in configs/), NPROC the number of processes on this machine (default: one a GPU, or one on the CPU). Flags
# given here win over the recipe's. DRY_RUN=1 prints the command.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi
[[ $# -ge 2 && $1 != -* && $2 != -* ]] || die "needs CORPUS and SAVE_DIR (see -h)"
CORPUS=$1 SAVE_DIR=$2
shift 2

ARCH=${ARCH:-tupe_r_base}
CONFIG=${CONFIG:-$ROOT/configs/${ARCH##*_}.args}
IFS=: read -ra folders <<<"$CORPUS"
for folder in "${folders[@]}"; do
  for file in dict.txt train.idx valid.idx; do
    [[ -r $folder/bin/$file ]] || die "no $folder/bin/$file; scripts/prepare_corpus.sh -o $folder makes it"
  done
done
words=$(recipe "$CONFIG")
mapfile -t flags < <(printf %s "$words")

[[ -n ${DRY_RUN:-} ]] || mkdir -p "$SAVE_DIR" 2>/dev/null || die "cannot make the folder $SAVE_DIR"
[[ -n ${DRY_RUN:-} ]] || keep "$SAVE_DIR" "${folders[0]}"/{dict.txt,spm.model}
train "${CORPUS//:/\/bin:}/bin" \
  --task tupe_masked_lm --criterion masked_lm --arch "$ARCH" \
  --save-dir "$SAVE_DIR" --tensorboard-logdir "$SAVE_DIR/tensorboard" "${flags[@]}" "$@"
