#!/bin/bash
#PBS -N cwm-train
#PBS -q gpu
#PBS -l select=1:ncpus=4:ngpus=1:mem=16gb:scratch_local=20gb
#PBS -l walltime=24:00:00

# Train a world model in a PBS job, e.g. on MetaCentrum. Submit it in the folder of your results:
#
#   qsub -v RUN=catch,ARGUMENTS="--env Catch-v0 --model transformer --steps 100000" train.sh
#
# The run is in the scratch folder while the job works, and is copied to $PBS_O_WORKDIR/$RUN at the
# end, also at the time limit. The same qsub command continues it.

set -euo pipefail
: "${RUN:?give the name of the run: qsub -v RUN=NAME,ARGUMENTS=...}"
: "${ARGUMENTS:?give the options of cwm train: qsub -v RUN=NAME,ARGUMENTS=...}"
: "${SCRATCHDIR:?this job has no scratch folder: add scratch_local to #PBS -l select}"
if [ -n "${ENVIRONMENT:-}" ]; then # the folder of a virtual environment with cwm
    source "$ENVIRONMENT/bin/activate"
fi

case "$RUN" in
    */* | . | ..) echo "RUN is a name, not a path: $RUN" >&2; exit 1 ;;
esac
kept="$PBS_O_WORKDIR/$RUN" copy="$PBS_O_WORKDIR/.$RUN.part" complete="$PBS_O_WORKDIR/.$RUN.new"

# Replace the kept run by a complete copy, also if an earlier job ended in between.
replace() {
    if [ -d "$complete" ]; then
        rm -rf "$kept"
        mv "$complete" "$kept"
    fi
}

save() {
    if [ -d "$SCRATCHDIR/$RUN" ]; then
        cp -r "$SCRATCHDIR/$RUN" "$copy"
        mv "$copy" "$complete"
        replace
        rm -rf "${SCRATCHDIR:?}/$RUN"
    fi
}

rm -rf "$copy"
replace
if [ -d "$kept" ]; then
    cp -r "$kept" "$SCRATCHDIR/$RUN"
fi
cd "$SCRATCHDIR"
trap save EXIT
# PBS sends TERM at the time limit. Bash handles it only while it waits.
trap 'kill -TERM "$training"; wait "$training" || true; exit 143' TERM
# shellcheck disable=SC2086  # the options are separate words
cwm train $ARGUMENTS --run "$RUN" &
training=$!
wait "$training"
