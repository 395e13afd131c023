#!/usr/bin/env bash
# No labels: learn features by self-labeling, make balanced groups, and find the photos most similar to a given one.
# Usage: selflabel_and_retrieve.sh [FOLDER [QUERY.png]]    (default: generated digits, and the first of them)
# Environment: OUT (folder, default demo/selflabel), GROUPS_WANTED (default 10), TRAIN (training options). For photos:
#   TRAIN="--backbone resnet18 --pretrained --image-size 224 --lr 0.01"
set -euo pipefail
out=${OUT:-demo/selflabel}
mkdir -p "$out"
if [ $# -ge 1 ]; then
    photos=$1
else
    python "$(dirname "$0")/digit_photos.py" "$out/photos"
    photos=$out/photos
fi
query=${2:-$(find "$photos" -name '*.png' -o -name '*.jpg' | sort | sed -n 1p)}
train=${TRAIN:---preset digits --holdout none --epochs 10 --lr-drop-epochs 6,8 --num-optimizations 10}

run=$(labelkit train sela --dataset "$photos" $train --out "$out/run" --overwrite -q)
index=$(labelkit embed --dataset "$photos" --checkpoint "$run" --out "$out/photos.h5" --overwrite -q)
labelkit cluster sinkhorn --index "$index" --num-clusters "${GROUPS_WANTED:-10}" --overwrite
labelkit retrieve --query "$query" --index "$index" -k 8 --skip-duplicates --csv "$out/hits.csv" --sheet "$out/hits.png" --overwrite
echo "made: $run $index $out/hits.csv $out/hits.png"
