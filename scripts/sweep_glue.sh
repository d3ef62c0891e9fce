#!/usr/bin/env bash
# Fine-tunes a model on GLUE as the paper does: every learning rate with every seed, on every task.
#
#   [RATES="2e-5 3e-5 4e-5 5e-5"] [SEEDS="1 2 3 4 5"] [CONFIG=FILE] \
#     bash scripts/sweep_glue.sh GLUE_BIN CHECKPOINT RUNS [TASK...] [-- fairseq-train flags]
#
# GLUE_BIN is a folder made by prepare_glue.sh; without TASK, all of GLUE that it has rows to train on is done.
# Each run is one of finetune_glue.sh, into RUNS/TASK/lr-RATE_seed-SEED: checkpoint_best.pt, all output in
# train.log, and, when it is finished, the metrics of its best validation in result.json. One run works on each
# GPU (of CUDA_VISIBLE_DEVICES, if that is set), or one after the other on the CPU. The same command again skips
# what is finished and goes on with what was cut or failed; other flags or another checkpoint need another RUNS,
# while rates, seeds and tasks may be added. A run leaves two checkpoints, the last with its optimizer; flags
# "-- --no-save" leave none, and a run that was cut then starts anew. CONFIG is a file of flags (default:
# configs/glue.args). DRY_RUN=1 prints the commands of the runs. Afterwards: python -m tupe_fairseq.glue report RUNS

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi
[[ $# -ge 3 && $1 != -* && $2 != -* && $3 != -* ]] || die "needs GLUE_BIN, CHECKPOINT and RUNS (see -h)"

# In place of this shell, so that a signal to it reaches the sweep.
exec python -m tupe_fairseq.glue_sweep ${DRY_RUN:+--dry-run} \
  --finetune "$ROOT/scripts/finetune_glue.sh" --config "${CONFIG:-$ROOT/configs/glue.args}" \
  --rates "${RATES:-2e-5 3e-5 4e-5 5e-5}" --seeds "${SEEDS:-1 2 3 4 5}" "$@"
