#!/usr/bin/env bash
# The small form of `run.py ddr` on a machine with a GPU and without a network.
#
#   offline.sh pack FOLDER WORK PACK SET…   here: wheels, collections and what is made already go into PACK
#   offline.sh run PACK OUT SECONDS JOBS […] there: go on for so long; OUT/out.tgz has the results at any time
#
# WORK is the --work folder of earlier runs: its backbone and mined negatives travel, so that none is made there.
# Unpack out.tgz here, copy the files to results/ddr-small, and the next run goes on after them.
set -euo pipefail
VERB=$1
shift
PLATFORMS=$(for name in manylinux_2_28 manylinux_2_27 manylinux_2_24 manylinux_2_17 manylinux2014; do echo "--platform ${name}_x86_64"; done)
WHEELS="annotated-types events ir_measures opensearch-py orjson platformdirs pydantic pydantic-core pytrec_eval-terrier rank-bm25 typing-inspection"

if [ "$VERB" = pack ]; then
  FOLDER=$1 WORK=$2 PACK=$3
  shift 3
  mkdir -p "$PACK/wheels" "$PACK/hybridr-0.3.0.dist-info"
  printf 'Metadata-Version: 2.1\nName: hybridr\nVersion: 0.3.0\n' > "$PACK/hybridr-0.3.0.dist-info/METADATA"
  for name in $WHEELS; do
    python -m pip download -q --no-deps --only-binary=:all: --python-version 3.12 --implementation cp $PLATFORMS \
      -d "$PACK/wheels" "$name==$(python -c "from importlib.metadata import version; print(version('$name'))")"
  done
  tar cJf "$PACK/collections.tar.xz" -C "$FOLDER" squad "$@"
  (cd "$WORK" && tar cJf - backbone small/seed-*/negatives-*) > "$PACK/work.tar.xz"
  du -sh "$PACK"
else
  PACK=$1 OUT=$2 SECONDS_LEFT=$3 JOBS=$4
  shift 4
  AREA=/dev/shm/ddr  # in memory: many small checkpoints
  mkdir -p "$AREA/data" "$AREA/work" "$AREA/site" "$AREA/home"
  python3 -m pip install -q --no-index --no-deps --target "$AREA/site" "$PACK"/wheels/*.whl
  cp -r "$PACK"/hybridr-*.dist-info "$AREA/site"
  tar xJf "$PACK/collections.tar.xz" -C "$AREA/data"
  tar xJf "$PACK/work.tar.xz" -C "$AREA/work"
  mkdir -p "$AREA/out" && cp benchmarks/results/ddr-small/*.json "$AREA/out"
  export PYTHONPATH="$AREA/site:$PWD" OMP_NUM_THREADS=1 HYBRIDR_HOME="$AREA/home" HOME="$AREA/home"
  timeout -k 8 --signal INT "$SECONDS_LEFT" python3 -u benchmarks/run.py ddr "$AREA/data" --form small \
    --work "$AREA/work" --json "$AREA/out" --jobs "$JOBS" "$@" > "$OUT/log" 2>&1 &
  MAIN=$!
  while kill -0 $MAIN 2> /dev/null; do
    sleep 10
    tar czf "$OUT/next.tgz" -C "$AREA" out && mv "$OUT/next.tgz" "$OUT/out.tgz"
  done
  grep "by seed\|failed\|rror" "$OUT/log" | tail -60
fi
