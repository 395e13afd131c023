#!/usr/bin/env bash
# From the bundled digits to scored predictions: train, embed, cluster, discover, evaluate, retrieve.
# Usage: discover_digits.sh [FOLDER]   (default: demo; set EPOCHS=2 in the environment to train for only 2 epochs)
set -euo pipefail
out=${1:-demo}
mkdir -p "$out"

run=$(labelkit train flipclass --dataset digits ${EPOCHS:+--epochs "$EPOCHS"} --out "$out/flipclass-digits" --overwrite -q)
index=$(labelkit embed --dataset digits --checkpoint "$run" --out "$out/digits.h5" --overwrite -q)
labelkit cluster ss-kmeans --index "$index" --num-clusters 10 --overwrite -q > /dev/null
labelkit discover head --index "$index" --overwrite -q > /dev/null
classes=$(labelkit discover categories --index "$index" --overwrite --json |
    python -c 'import json, sys; print(json.load(sys.stdin)["num_classes"])')
echo "estimated number of classes: $classes"

python - "$out/query.png" <<'PY'
import sys
from PIL import Image
from sklearn.datasets import load_digits
Image.fromarray((load_digits().images[1000] * 255 / 16).round().astype("uint8")).save(sys.argv[1])
PY
labelkit retrieve --query "$out/query.png" --index "$index" -k 10 --sheet "$out/sheet.png" --overwrite
labelkit evaluate clustering --index "$index" --json > "$out/scores.json"
labelkit evaluate clustering --index "$index"
echo "made: $run $index $out/scores.json $out/sheet.png"
