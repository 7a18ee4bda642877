#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
#
# The script of 'make run' for both guests: host 1 is the server, host 2 the client. Each step
# writes its result as a line of $OUT/results: name, "ok" or "FAILED", figure.

# Most functions here are passed by name to other functions.
# shellcheck disable=SC2317
set -u

: >"$OUT/results"

# wait_until WORDS COMMAND...: wait until COMMAND succeeds, 20 s at most.
wait_until() {
    local words=$1 tries=200
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        if [ $tries = 0 ]; then
            echo "$words: not within 20 s"
            return 1
        fi
        sleep 0.1
    done
}
rdma_listens() { rdma resource show cm_id | grep -q LISTEN; }
tcp_listens() { ss -Hltn "sport = :$1" | grep -q .; }

# step NAME FIGURE LISTENS SERVER -- CLIENT: run SERVER on host 1, and CLIENT on host 2 as soon as
# the command LISTENS reports that the server is listening. The command FIGURE prints the result
# from the output.
step() {
    local name=$1 figure=$2 listens=$3 log server=() outcome=ok
    shift 3
    while [ "$1" != -- ]; do server+=("$1"); shift; done
    shift
    log=$OUT/$(tr -c 'A-Za-z0-9\n' - <<<"$name").log
    if [ "$HOST" = 1 ]; then
        timeout 100 "${server[@]}" >"$log" 2>&1 &
        # shellcheck disable=SC2086  # a command and its arguments
        wait_until "$name: server" $listens
        barrier "step" 60
        wait $! || outcome=FAILED
    else
        barrier "step" 60
        echo "$name …"
        timeout 90 "$@" >"$log" 2>&1 || outcome=FAILED
    fi
    printf '%s\t%s\t%s\n' "$name" "$outcome" "$($figure "$log")" >>"$OUT/results"
    if [ $outcome != ok ]; then
        echo "$name FAILED on host $HOST:"
        tail -n 15 "$log"
        failed=1
    fi
}
# rping prints a line for each round whose data came back intact.
rounds() { echo "$(grep -c 'ping data' "$1") rounds"; }
# perftest's line of figures: average bandwidth, average latency.
bandwidth() { awk '/^ #bytes/ && getline && NF >= 5 { print $4 " MiB/s" }' "$1"; }
latency() { awk '/^ #bytes/ && getline && NF >= 9 { print $6 " us" }' "$1"; }

failed=0
peer-ready || failed=1
if [ "$HOST" = 1 ]; then
    rdma link
    ibv_devinfo -d "$DEV" || failed=1
fi
barrier shown

step "rping, IPv4" rounds rdma_listens rping -s -a "$SELF" -v -V -C 20 -- rping -c -a "$PEER" -v -V -C 20
step "rping, IPv6" rounds rdma_listens rping -s -a "$SELF6" -v -V -C 20 -- rping -c -a "$PEER6" -v -V -C 20

gid=$(gid-index 4) || failed=1
perftest() {
    local name=$1 figure=$2
    shift 2
    step "$name" "$figure" "tcp_listens 18515" "$@" -- "$@" "$PEER"
}
for test in send write read; do
    perftest "ib_${test}_bw, 64 KiB" bandwidth ib_${test}_bw -d "$DEV" -x "$gid" -F -s 65536 -n 500
done
perftest "ib_write_lat, 8 B" latency ib_write_lat -d "$DEV" -x "$gid" -F -s 8 -n 500

exit $failed
