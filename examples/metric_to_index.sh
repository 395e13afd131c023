#!/usr/bin/env bash
# From metric learning to a search index: train embeddings with labels, score retrieval on unseen photos, search with HNSW.
# Usage: metric_to_index.sh [FOLDER [QUERY.png]]    (a folder with a subfolder per class; default: generated digits)
# Environment: OUT (folder, default demo/metric), TRAIN (training options). For photos:
#   TRAIN="--backbone resnet18 --pretrained --image-size 224 --augmentation box --san-before layer4 --lr 3e-5"
set -euo pipefail
out=${OUT:-demo/metric}
mkdir -p "$out"
if [ $# -ge 1 ]; then
    photos=$1
else
    python "$(dirname "$0")/digit_photos.py" "$out/photos"
    photos=$out/photos
fi
query=${2:-$(find "$photos" -name '*.png' -o -name '*.jpg' | sort | sed -n 1p)}
train=${TRAIN:---preset digits --epochs 4}

run=$(labelkit train san --dataset "$photos" $train --out "$out/run" --overwrite -q)
index=$(labelkit embed --dataset "$photos" --split all --checkpoint "$run" --out "$out/photos.h5" --overwrite -q)
labelkit evaluate retrieval --index "$index" --split test -k 1,4
labelkit retrieve --query "$query" --index "$index" -k 8 --search hnsw --csv "$out/hits.csv" --sheet "$out/hits.png" --overwrite
echo "made: $run $index $out/hits.csv $out/hits.png"
