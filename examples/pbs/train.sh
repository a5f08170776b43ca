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

# Copy the run to a new folder first, so that a failed copy does not damage the last one.
save() {
    if [ -d "$SCRATCHDIR/$RUN" ]; then
        cp -r "$SCRATCHDIR/$RUN" "$PBS_O_WORKDIR/.$RUN.part"
        rm -rf "${PBS_O_WORKDIR:?}/$RUN"
        mv "$PBS_O_WORKDIR/.$RUN.part" "$PBS_O_WORKDIR/$RUN"
        rm -rf "${SCRATCHDIR:?}/$RUN"
    fi
}

rm -rf "$PBS_O_WORKDIR/.$RUN.part"
if [ -d "$PBS_O_WORKDIR/$RUN" ]; then
    cp -r "$PBS_O_WORKDIR/$RUN" "$SCRATCHDIR/$RUN"
fi
cd "$SCRATCHDIR"
trap save EXIT
# PBS sends TERM at the time limit. Bash handles it only while it waits.
trap 'kill -TERM "$training"; wait "$training" || true; exit 143' TERM
# shellcheck disable=SC2086  # the options are separate words
cwm train $ARGUMENTS --run "$RUN" &
training=$!
wait "$training"
