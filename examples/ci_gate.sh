#!/usr/bin/env bash
# Continuous integration: fail (exit code 10) if the scores of features are below a limit.
# Usage: ci_gate.sh [INDEX.h5]    (a store with the splits train and test; default: pixels of the bundled digits)
# Environment: OUT (folder, default demo/gate), LIMITS (default knn_accuracy=0.95)
set -euo pipefail
out=${OUT:-demo/gate}
mkdir -p "$out"
if [ $# -ge 1 ]; then
    index=$1
else
    index=$(labelkit embed --dataset digits --holdout 0.2 --split all --backbone pixels --image-size 16 \
        --out "$out/digits.h5" --overwrite -q)
fi

code=0
labelkit evaluate knn --index "$index" --fail-under "${LIMITS:-knn_accuracy=0.95}" --json > "$out/scores.json" || code=$?
python - "$out/scores.json" <<'PY'
import json, sys
for check in json.load(open(sys.argv[1]))["gate"]["checks"]:
    print("kept  " if check["passed"] else "MISSED", check["score"], check["value"], check["rule"], check["limit"])
PY
exit "$code"
