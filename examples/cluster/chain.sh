#!/usr/bin/env bash
# Features, groups, names and neighbors of many images, every step on several processes. After a stop, give the same
# command again.
#
#     examples/cluster/chain.sh IMAGES FOLDER GROUPS [options of embed]
#     examples/cluster/chain.sh 'shards/{000..099}.tar' big 1000 --backbone resnet50 --pretrained
#
# LABELS=known.csv names a table path,label of some images: groups keep to them, and every other image is answered.
# PROCESSES=4 says how many on this machine (2). LAUNCH is what starts a step instead, as slurm.sh and kubernetes.yaml
# set it. embed goes on where it was stopped; a step whose result is there is left out.
set -euo pipefail
images=$1 folder=$2 groups=$3
shift 3
read -ra launch <<<"${LAUNCH:-torchrun --standalone --nproc-per-node ${PROCESSES:-2}}"
store=$folder/rows.h5

run() {
    "${launch[@]}" -m labelkit "$@"
}

mkdir -p "$folder"
run embed --dataset "$images" --out "$store" --shards 4 "$@"
if [ -n "${LABELS:-}" ]; then
    [ -e "$store.results/ss-kmeans.h5" ] ||
        run cluster ss-kmeans --index "$store" --labels "$LABELS" --num-clusters "$groups" --max-memory 4GiB
    # the table is written last
    [ -e "$folder/answers.csv" ] ||
        run discover answer --index "$store" --csv "$folder/answers.csv" --overwrite
else
    [ -e "$store.results/k-means.h5" ] ||
        run cluster k-means --index "$store" --num-clusters "$groups" --max-memory 4GiB
fi
[ -e "$folder/neighbors.csv" ] ||
    run retrieve --index "$store" --query "$store" -k 5 --csv "$folder/neighbors.csv" -q
