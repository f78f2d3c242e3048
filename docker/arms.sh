#!/bin/sh
# The two arms of compose.yaml:
#   arms.sh in-turn [ARGUMENTS of scripts.ab]   one container, servers one after the other
#   arms.sh up | wait | measure | logs | stop   two servers side by side, and the client
# Variables: those of compose.yaml (IMAGE, BIND, DENSE_GPUS, PACKED_GPUS, SERVER_ARGS, ...),
# WAIT_S (default 3600), LOGS (default build/ab/logs).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
logs=${LOGS:-$here/../build/ab/logs}

compose() {
    docker compose -f "$here/compose.yaml" --profile side-by-side "$@"
}

health() {
    id=$(compose ps --all --quiet "$1")
    [ -n "$id" ] || { echo missing; return; }
    docker inspect --format '{{.State.Status}} {{.State.Health.Status}}' "$id"
}

wait_for() {
    deadline=$(($(date +%s) + ${WAIT_S:-3600}))
    until state=$(health "$1") && [ "$state" = "running healthy" ]; do
        case $state in
            running*) ;;
            *) echo "arms: $1 is not running ($state); arms.sh logs" >&2; return 1 ;;
        esac
        if [ "$(date +%s)" -ge "$deadline" ]; then
            echo "arms: $1 was not healthy in ${WAIT_S:-3600} s ($state)" >&2
            return 1
        fi
        sleep 5
    done
    echo "arms: $1 is healthy"
}

collect() {
    mkdir -p "$logs"
    for arm in dense packed; do
        compose logs --no-color --timestamps "$arm" > "$logs/$arm.log" 2>&1 || true
    done
    echo "arms: logs in $logs"
}

case ${1:-} in
    in-turn)
        shift
        docker compose -f "$here/compose.yaml" run --rm ab "$@"
        ;;
    up) compose up --detach dense packed ;;
    wait)
        for arm in dense packed; do
            wait_for "$arm" || { collect; exit 1; }
        done
        ;;
    measure) compose run --rm client ;;
    logs) collect ;;
    stop)
        collect
        compose down --timeout 60
        ;;
    *)
        echo "arms: in-turn, up, wait, measure, logs or stop" >&2
        exit 2
        ;;
esac
