#!/bin/sh
# Everything, in order: sh tools/starter/run.sh DATA STATE TARGET. prep.py needs npm; from autoencoder.py on, a GPU.
set -e
data=$1 state=$2 target=$3
python3 tools/starter/prep.py "$data"
python3 tools/starter/layers.py "$data"
python3 tools/starter/latents.py recipes "$data" "$state" 131072 &
python3 tools/starter/autoencoder.py "$data" "$state" 210
wait
python3 tools/starter/latents.py pictures "$data" "$state"
python3 tools/starter/train.py "$state" 960
python3 tools/starter/previews.py "$data" "$state" 25
python3 tools/starter/export.py "$state" "$target"
