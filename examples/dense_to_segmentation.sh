#!/usr/bin/env bash
# Patch features: train without labels, segment with a linear head and with patch clusters, and find parts in other images.
# Usage: dense_to_segmentation.sh [DATASET]    (a dataset with masks: generated scenes by default, or a folder with images/ and
#   masks/, or with both in train/ and val/)
# Environment: OUT (folder, default demo/dense), OBJECTS (training images of single objects, default scene_objects), TRAIN
#   (training options), SIZE (image size, default 64), LIMIT (number of scored images per split, default 60)
set -euo pipefail
out=${OUT:-demo/dense}
mkdir -p "$out"
dataset=${1:-scenes}
size=${SIZE:-64}
limit=${LIMIT:-60}
objects=${OBJECTS:-scene_objects}
train=${TRAIN:---preset scene_objects_stage1 --steps 40 --eval-every-steps 40 --lr-warmup-steps 5}

run=$(labelkit train cotap --dataset "$objects" $train --out "$out/run" --overwrite -q)
network="--checkpoint $run --dataset $dataset --image-size $size --max-images $limit"
labelkit evaluate segmentation $network --samples 2000 --seeds 1 --sheet "$out/head.png" --overwrite --json > "$out/head.json"
labelkit evaluate patch-clusters $network --seeds 1 --json > "$out/groups.json"
index=$(labelkit embed --dataset "$dataset" --split val --checkpoint "$run" --image-size "$size" --dense \
    --max-images "$limit" --out "$out/images.h5" --overwrite -q | sed -n 1p)
labelkit retrieve --index "$index" --query-rows 0 --pixel 20,30 -k 5 --sheet "$out/parts.png" --overwrite
echo "made: $run $index $out/head.json $out/groups.json $out/head.png $out/parts.png"
