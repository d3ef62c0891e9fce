#!/usr/bin/env bash
# Kills and resumes a small pre-training at random moments, fills its disk and cuts its newest checkpoint, and
# compares its end with that of an unbroken run. Prints a Markdown table; the status is 1 where the two differ.
#
#   bash tests/soak.sh [--events 22] [--seed 1]
#
# Takes a few minutes; a full disk is a real one where this user may mount a tmpfs, and a limit of file sizes
# elsewhere. Run by hand, not by scripts/test.sh.

# shellcheck source=scripts/common.sh
source "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/common.sh"
if [[ ${1:-} == -h || ${1:-} == --help ]]; then
  usage
  exit
fi

exec python "$ROOT/tests/soak.py" "$@"
