#!/usr/bin/env bash
# Fine-tunes a pre-trained model on one GLUE task, with fairseq-train.
#
#   [CONFIG=FILE] [NPROC=1] bash scripts/finetune_glue.sh TASK GLUE_BIN CHECKPOINT SAVE_DIR [fairseq-train flags]
#
# TASK is CoLA, RTE, ...; GLUE_BIN a folder made by prepare_glue.sh; CHECKPOINT a model of pretrain.sh, whose
# shape is taken over. SAVE_DIR receives checkpoint_best.pt, by the task's metric on its dev set, TensorBoard logs,
# and what prediction needs besides (task.json, dict.txt, spm.model); the same command again goes on where it
# stopped. CONFIG is a file of flags (default: configs/glue.args), NPROC the number of processes on this machine,
# each with batches of its own. Flags given here win over the recipe's. DRY_RUN=1 prints the command.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi
[[ $# -ge 4 && $1 != -* && $2 != -* && $3 != -* && $4 != -* ]] || die "needs TASK, GLUE_BIN, CHECKPOINT and SAVE_DIR (see -h)"
TASK=$1 GLUE_BIN=$2 CHECKPOINT=$3 SAVE_DIR=$4
shift 4

CONFIG=${CONFIG:-$ROOT/configs/glue.args}
[[ -d $GLUE_BIN/$TASK ]] || die "no folder $GLUE_BIN/$TASK; scripts/prepare_glue.sh -o $GLUE_BIN $TASK makes it"
[[ -f $CHECKPOINT ]] || die "no checkpoint $CHECKPOINT; scripts/pretrain.sh makes one"
words=$(recipe "$CONFIG")
mapfile -t flags < <(printf %s "$words")
[[ -n ${WORLD_SIZE:-} ]] || export NPROC=${NPROC:-1}

workers=(--distributed-world-size "${WORLD_SIZE:-$NPROC}") # the number of updates depends on it
computed=$(python -m tupe_fairseq.glue_flags "$TASK" "$GLUE_BIN" "$CHECKPOINT" "${workers[@]}" "${flags[@]}" "$@")
mapfile -t computed <<<"$computed"

[[ -n ${DRY_RUN:-} ]] || mkdir -p "$SAVE_DIR" 2>/dev/null || die "cannot make the folder $SAVE_DIR"
[[ -n ${DRY_RUN:-} ]] || keep "$SAVE_DIR" "$GLUE_BIN/$TASK"/{task.json,dict.txt,spm.model}
train "$GLUE_BIN/$TASK" \
  --task tupe_sentence_prediction --criterion tupe_sentence_prediction "${flags[@]}" "${computed[@]}" \
  --finetune-from-model "$CHECKPOINT" --save-dir "$SAVE_DIR" --tensorboard-logdir "$SAVE_DIR/tensorboard" "$@"
