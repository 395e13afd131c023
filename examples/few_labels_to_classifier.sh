#!/usr/bin/env bash
# Train a classifier from a few labels: FreeMatch on a list of mostly unlabeled photos, then predict a class for every photo.
# Usage: few_labels_to_classifier.sh [LABELS.csv [TRUTH.csv]]    (columns path,label; an empty label means unlabeled;
#   default: generated digits, five labels per class; TRUTH: the same photos with all labels, to score the result)
# Environment: OUT (folder, default demo/few), TRAIN (training options). For photos:
#   TRAIN="--backbone resnet18 --pretrained --image-size 224 --lr 1e-4"
set -euo pipefail
out=${OUT:-demo/few}
mkdir -p "$out"
if [ $# -ge 1 ]; then
    list=$1
    truth=${2:-}
else
    python "$(dirname "$0")/digit_photos.py" "$out/photos"
    list=$out/photos/few.csv
    truth=$out/photos/truth.csv
fi
train=${TRAIN:---preset digits --num-labels none --holdout none --steps 300 --eval-every-steps 300}

run=$(labelkit train freematch --dataset "$list" $train --out "$out/run" --overwrite -q)
index=$(labelkit embed --dataset "$list" --checkpoint "$run" --out "$out/photos.h5" --overwrite -q)
labelkit discover head --index "$index" --result classes --overwrite
python "$(dirname "$0")/read_store.py" "$index" --result classes --csv "$out/classes.csv"
if [ -n "$truth" ]; then
    checked=$(labelkit embed --dataset "$truth" --checkpoint "$run" --out "$out/truth.h5" --overwrite -q)
    labelkit evaluate classification --index "$checked" --split all
fi
echo "made: $run $index $out/classes.csv"
