#!/usr/bin/env bash
# Does the whole job on this machine, in less than five minutes on two CPU cores: BPE, pre-training, fine-tuning,
# curves.
#
#   [OUT_DIR=runs/quickstart] bash scripts/quickstart.sh [TEXT...]
#
# TEXT is UTF-8 text, plain or gzip, a paragraph a line, with a blank line between documents; without any, the
# documentation that comes with Python. A quarter of the documents is kept from pre-training: sentences of theirs,
# some with three words moved, make the task to fine-tune on. OUT_DIR is a folder of its own: what an earlier run
# left there is replaced. CONFIG, if set, is the recipe of both trainings. DRY_RUN=1 prints the commands.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/common.sh"
case ${1:-} in
  -h | --help) usage && exit ;;
  -*) die "unknown flag $1 (see -h)" ;;
esac
for text in "$@"; do
  [[ -r $text && ! -d $text ]] || die "cannot read the text $text"
done
OUT_DIR=${OUT_DIR:-runs/quickstart}
if [[ -z ${DRY_RUN:-} ]]; then
  mkdir -p "$OUT_DIR" 2>/dev/null && [[ -w $OUT_DIR ]] || die "cannot write to $OUT_DIR; name another with OUT_DIR="
  if [[ ! -e $OUT_DIR/.quickstart && -n $(ls -A "$OUT_DIR") ]]; then
    die "$OUT_DIR holds other files than a quickstart's; name an empty or new folder with OUT_DIR="
  fi
  for text in "$@"; do
    [[ $(realpath "$text") != "$(realpath "$OUT_DIR")"/* ]] || die "$text lies in $OUT_DIR, which is replaced; move it"
  done
  touch "$OUT_DIR/.quickstart"
  mkdir -p "$OUT_DIR/log"
  : >"$OUT_DIR/seconds.tsv"
fi

# Runs a command as a step: all it says goes to a log, what the filter $2 lets through to the terminal.
step() {
  local name=$1 filter=$2 start=$SECONDS log="$OUT_DIR/log/${1// /-}.log"
  shift 2
  if [[ -n ${DRY_RUN:-} ]]; then
    DRY_RUN=1 run "$@"
    return
  fi
  echo "== $name"
  if ! in_group logged "$log" "$filter" "$@"; then
    tail -n 5 "$log" >&2
    die "'$name' failed; all it said is in $log"
  fi
  printf '%s\t%s\n' "$name" "$((SECONDS - start))" >>"$OUT_DIR/seconds.tsv"
}

# logged LOG FILTER COMMAND...
# shellcheck disable=SC2329  # in_group calls it by its name
logged() {
  "${@:3}" 2>&1 | tee "$1" | "$2"
}

# Lines as they come, which awk and sed may hold back.
# shellcheck disable=SC2329  # step calls the filters by their names
all() {
  local line
  while IFS= read -r line; do
    echo "  $line"
  done
}

# Of what fairseq-train says, the figures of the validations.
# shellcheck disable=SC2329
validations() {
  local line name
  while IFS= read -r line; do
    if [[ $line == *" | valid | "* && $line =~ num_updates\ ([0-9]+) ]]; then
      printf '  update %5d' "${BASH_REMATCH[1]}"
      for name in loss mcc accuracy; do
        if [[ $line =~ \|\ $name\ ([-0-9.e]+) ]]; then
          LC_ALL=C printf '   %s %.3f' "$name" "${BASH_REMATCH[1]}"
        fi
      done
      echo
    fi
  done
}

step "set-up" all bash "$ROOT/scripts/setup.sh"
PATH=$VENV/bin:$PATH
run rm -rf "$OUT_DIR"/{text,corpus,pretrain,glue-bin,finetune,summary.json,loss.png,positions.png}
step "text" all python -m tupe_fairseq.word_order -o "$OUT_DIR/text" "$@"
step "BPE" all bash "$ROOT/scripts/prepare_corpus.sh" -o "$OUT_DIR/corpus" \
  -v 2000 --shrink-vocab --valid-every 20 --min-letters 20 --min-letter-share 0.6 "$OUT_DIR/text/pretrain.txt"
export ARCH=tupe_r_tiny
# fairseq's rate of update 1 is 0: the validation after it is of the untrained model.
step "untrained model" validations bash "$ROOT/scripts/pretrain.sh" "$OUT_DIR/corpus" "$OUT_DIR/pretrain" --max-update 1
step "pre-training" validations bash "$ROOT/scripts/pretrain.sh" "$OUT_DIR/corpus" "$OUT_DIR/pretrain"
step "GLUE preparation" all bash "$ROOT/scripts/prepare_glue.sh" \
  -g "$OUT_DIR/text/glue" -c "$OUT_DIR/corpus" -o "$OUT_DIR/glue-bin" WordOrder
step "fine-tuning" validations bash "$ROOT/scripts/finetune_glue.sh" WordOrder "$OUT_DIR/glue-bin" \
  "$OUT_DIR/pretrain/checkpoint_last.pt" "$OUT_DIR/finetune" --lr 3e-4
step "report" all python -m tupe_fairseq.quickstart_report "$OUT_DIR"
[[ -z ${DRY_RUN:-} ]] || exit 0
cat <<EOF

Pictures:    $OUT_DIR/loss.png, $OUT_DIR/positions.png
Figures:     $OUT_DIR/summary.json
TensorBoard: $VENV/bin/tensorboard --logdir $OUT_DIR
EOF
