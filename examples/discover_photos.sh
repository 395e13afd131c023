#!/usr/bin/env bash
# Discover the categories of photos, 50 of which are labeled: how many there are, and whether each photo is known, new or unsure.
# Usage: discover_photos.sh [LABELS.csv]    (columns path,label; an empty label means unlabeled; default: generated digits)
# Environment: OUT (folder, default demo/discover), START (initial network), TRAIN (training options). For photos:
#   START="--backbone vit_base_patch16_224.dino --pretrained"
#   TRAIN="$START --grad-from-block 11 --no-train-stem --optimizer sgd --lr 0.1 --contrastive-temperature 1.0"
set -euo pipefail
out=${OUT:-demo/discover}
mkdir -p "$out"
if [ $# -ge 1 ]; then
    list=$1
else
    python "$(dirname "$0")/digit_photos.py" "$out/photos"
    list=$out/photos/discover.csv
fi
start=${START:---backbone pixels --image-size 16}
train=${TRAIN:---preset digits --epochs 15}

labelkit embed --dataset "$list" $start --out "$out/start.h5" --overwrite -q > /dev/null
classes=$(labelkit discover categories --index "$out/start.h5" --overwrite --json |
    python -c 'import json, sys; print(json.load(sys.stdin)["num_classes"])')
echo "estimated number of categories: $classes"

run=$(labelkit train flipclass --dataset "$list" --num-classes "$classes" $train --out "$out/run" --overwrite -q)
index=$(labelkit embed --dataset "$list" --checkpoint "$run" --out "$out/photos.h5" --overwrite -q)
labelkit cluster ss-kmeans --index "$index" --num-clusters "$classes" --overwrite -q > /dev/null
labelkit discover answer --index "$index" --grouping ss-kmeans --min-confidence 0.6 --csv "$out/answers.csv" --overwrite
head -5 "$out/answers.csv"
echo "made: $run $index $out/answers.csv"
