# shellcheck shell=bash
# Sourced by every script: strict mode, where the project lies, which Python runs it, and a few words.

set -euo pipefail

ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$ROOT/.venv}
if [[ -x $VENV/bin/python ]]; then
  PATH=$VENV/bin:$PATH
fi
# The scripts run this checkout, also where the package is installed from elsewhere.
export PATH PYTHONPATH="$ROOT${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONSAFEPATH=1 # no modules from the current folder, which is the user's (Python 3.11 and newer)
# Idle OpenMP threads sleep rather than spin: beside other processes, a small model trained 8 times faster on 2 cores.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive}

# What errors begin with.
TUPE_COMMAND=$(basename -- "$0" .sh)
export TUPE_COMMAND

# Ends the script with one sentence.
die() {
  echo "$TUPE_COMMAND: $*" >&2
  exit 1
}

# Prints the comment block at the top of the script: its usage.
usage() {
  sed -n '2,/^$/s/^# \{0,1\}//p' "$0"
}

[[ ${NPROC:-1} =~ ^[1-9][0-9]*$ ]] || die "NPROC=$NPROC is no number of processes; give 1 or more"

# Runs a command, or with DRY_RUN=1 prints it.
run() {
  if [[ -n ${DRY_RUN:-} ]]; then
    printf '%q ' "$@"
    echo
  else
    "$@"
  fi
}

# Runs a command in place of this shell, so that a signal to the script reaches it; or prints it.
run_last() {
  [[ -z ${DRY_RUN:-} ]] || { run "$@" && exit; }
  exec "$@"
}

# Runs a command and its children as a group, which a signal to this script ends first.
in_group() {
  local signal
  for signal in INT TERM HUP; do
    # shellcheck disable=SC2064  # the name of the signal now, the group when it comes
    trap "trap - $signal; kill -s TERM -- \"-\$working\" 2>/dev/null; kill -s $signal \$\$" "$signal"
  done
  set -m
  "$@" &
  working=$!
  set +m
  wait "$working"
}

# Prints the flags of a recipe, one word a line, without its comments.
recipe() {
  [[ -r $1 && ! -d $1 ]] || die "no recipe $1; ARCH is <variant>_<size>, or CONFIG names a file of flags"
  awk '{ sub(/#.*/, ""); sub(/\r$/, ""); for (i = 1; i <= NF; i++) print $i }' "$1"
}

# keep SAVE_DIR FILE...: copies files to the checkpoints that need them; others in their place are refused.
keep() {
  local save_dir=$1 file there part why
  shift
  for file in "$@"; do
    there=$save_dir/${file##*/}
    [[ ! -f $file || ! -f $there ]] || same "$file" "$there" ||
      die "$there differs from $file: these are checkpoints of other data; name another SAVE_DIR"
  done
  for file in "$@"; do
    there=$save_dir/${file##*/} part=$save_dir/.${file##*/}.${HOSTNAME:-}.$$
    if [[ ! -f $file ]]; then
      echo "note: no $file, so $save_dir will not have it" >&2
    elif [[ ! -f $there ]]; then
      # Whole or not at all: other nodes may do the same at this moment.
      why=$({ cp -- "$file" "$part" && mv -f -- "$part" "$there"; } 2>&1) ||
        die "cannot copy $file to $save_dir (${why##*: })"
    fi
  done
}

# Whether two files say the same; the counts in a dict.txt differ from corpus to corpus and mean nothing to a model.
same() {
  if [[ $1 == */dict.txt ]]; then
    cmp -s <(sed 's/ [0-9]*$//' "$1") <(sed 's/ [0-9]*$//' "$2")
  else
    cmp -s -- "$1" "$2"
  fi
}

# fairseq-train with the plugin, in NPROC processes of this machine, or as one of those that torchrun started.
train() {
  run_last python -m tupe_fairseq.train "$@"
}
