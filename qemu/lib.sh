# SPDX-License-Identifier: GPL-2.0
# shellcheck shell=bash
#
# Functions that the shell scripts of qemu/ share: paths, root privileges, progress, and building an
# item of the cache so that an interrupt or a concurrent run does not leave a partial one.
#
# Sourced, never run. The caller has set -euo pipefail.

say() { echo "rrxe: $*" >&2; }
die() { say "$*"; exit 1; }

TOP=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
CACHE=${RRXE_CACHE:-${XDG_CACHE_HOME:-${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}/.cache}/rrxe}
case $TOP$CACHE in
*[[:space:]]*) die "make and Kbuild support no blanks in paths: move the checkout ($TOP), or set RRXE_CACHE to another folder than $CACHE" ;;
esac
# One canonical path of the cache, however the user spelled it: it is bind-mounted under this name.
mkdir -p "$CACHE" || die "cannot create the cache folder $CACHE: set RRXE_CACHE to a folder that you can write"
CACHE=$(cd "$CACHE" && pwd -P)
LOGS=$CACHE/log
mkdir -p "$LOGS"

# shellcheck disable=SC2034  # used by the scripts that source this file
SUITE=trixie
# shellcheck disable=SC2034
LINUX=7.2

# as_root CMD...: run CMD as root. Only mounting, chroot and the ownership of a root filesystem need
# it.
as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        die "this step needs root: run it as root, or install sudo"
    fi
}

# need_tool COMMAND PACKAGE..., need_file FILE PACKAGE...: install PACKAGEs if the machine lacks
# COMMAND or FILE.
need_tool() {
    PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || install_packages "$@"
}

need_file() {
    [ -e "$1" ] || install_packages "$@"
}

install_packages() {
    local missing=$1
    shift
    command -v apt-get >/dev/null ||
        die "$missing is missing, and only on Debian 12 or 13 can rrxe install it by itself (Debian's package: $*)"
    with_progress "installing $*" "$LOGS/apt.log" "" apt_install "$@"
}

apt_install() {
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@")
    as_root "${install[@]}" && return
    # The machine may have no package lists, or old ones.
    as_root apt-get update
    as_root "${install[@]}"
}

# hash_of FILE|STRING...: a short name for a set of inputs.
hash_of() {
    local item
    for item in "$@"; do
        if [ -f "$item" ]; then cat "$item"; else printf '%s\n' "$item"; fi
    done | sha256sum | cut -c1-16
}

# locked NAME: hold the lock of a cache item until this process ends, so that concurrent runs build
# it only once.
locked() {
    local fd
    mkdir -p "$CACHE/lock"
    exec {fd}>"$CACHE/lock/$1"
    if ! flock -n "$fd"; then
        say "waiting for another run that is building $1"
        flock "$fd"
    fi
}

# partial DIR: create an empty folder beside DIR to build in; the caller renames it to DIR when it
# is complete. First removes those of interrupted runs: the caller holds the item's lock, so none is
# in use.
partial() {
    as_root rm -rf --one-file-system "$1".partial.* ||
        die "cannot remove what an interrupted run has left: unmount everything below $1.partial.* (see findmnt), and try again"
    mkdir -p "$1.partial.$$"
    echo "$1.partial.$$"
}

# new_debian WORDS LOG ARGUMENT...: create the file system of a Debian for amd64. The ARGUMENTs are
# for mmdebstrap. WORDS and LOG are those of with_progress.
new_debian() {
    local words=$1 log=$2 option options=()
    shift 2
    need_tool mmdebstrap mmdebstrap
    need_file /usr/share/keyrings/debian-archive-keyring.gpg debian-archive-keyring
    while IFS= read -r option; do
        [ -z "$option" ] || options+=(--aptopt="$option")
    done < <(apt_proxy_options)
    # The mounts in the new system end with mmdebstrap, even if it is killed.
    with_progress "$words" "$log" "" as_root unshare --mount --propagation private \
        mmdebstrap --mode=root --architectures=amd64 --dpkgopt=force-unsafe-io "${options[@]}" "$@"
}

# unpacked NAME PACKAGE RECIPE: print the path of a cache folder that contains a Debian package and
# its dependencies, unpacked but not installed: none of their maintainer scripts run. Unpacks them
# if the folder is missing. Increment RECIPE if the way in which the folder is made changes: the
# folder then gets a new name.
unpacked() {
    local name=$1 package=$2 folder mirror new
    folder=$CACHE/$name/$(hash_of "$SUITE $3 $package")
    if [ ! -d "$folder" ]; then
        locked "$name-${folder##*/}"
    fi
    if [ ! -d "$folder" ]; then
        mirror=$(debian_mirror)
        new=$(partial "$folder")
        new_debian "$name" "$LOGS/$name.log" --variant=extract --include="$package" \
            --aptopt='APT::Install-Recommends "false"' "$SUITE" "$new" "deb $mirror $SUITE main"
        as_root chmod 755 "$new"
        mv "$new" "$folder"
    fi
    echo "$folder"
}

# kernel_version SERIES: print the version of Debian's packages of Linux SERIES, for example
# 7.2.12-1~bpo13+1. It is the newest version in the archive at the time when the build root was
# made, according to the package lists of that root, and stays until the build root changes.
kernel_version() {
    local root lines version known
    root=$("$TOP/qemu/buildroot")
    known=$root.linux-$1
    if [ ! -s "$known" ]; then
        # In this folder, because the current one may be missing in the build root.
        lines=$(cd "$TOP" && qemu/in-root apt-cache madison "linux-source-$1") ||
            die "the build root does not say which version of Linux $1 the package archive has"
        version=$(awk '{ print $3 }' <<<"$lines" | sort -V | tail -n 1)
        [ -n "$version" ] || die "the package archive has no Linux $1 in $SUITE-backports: choose another KERNEL, or remove the build root ($root) to look again"
        echo "$version" | as_root tee "$known.new" >/dev/null
        as_root mv "$known.new" "$known"
    fi
    cat "$known"
}

# kernel_release SERIES: print the output of uname -r under Debian's kernel of Linux SERIES.
kernel_release() {
    local version
    version=$(kernel_version "$1")
    echo "${version%%-*}+deb13-amd64"
}

# with_progress WORDS LOG STATE COMMAND...: run COMMAND with its output in LOG, and show a line
# every 5 s; if it fails, show the end and the path of the log, and exit. STATE is a command that
# prints the progress of the work, or '' for the last line of the log.
with_progress() {
    local words=$1 log=$2 state=$3 job shown=$SECONDS start=$SECONDS status=0
    shift 3
    # sudo cannot ask for a password in the background: ask now, and refresh the credentials below.
    [ "$(id -u)" = 0 ] || ! command -v sudo >/dev/null || sudo -v
    # A process group of its own, so that an interrupt ends all of the work, not only its first
    # process.
    set -m
    "$@" >"$log" 2>&1 </dev/null &
    job=$!
    set +m
    # shellcheck disable=SC2064  # the job's number of now
    trap "as_root kill -- -$job 2>/dev/null; wait; say '$words: interrupted'; exit 130" INT TERM HUP
    while kill -0 "$job" 2>/dev/null; do
        sleep 0.2
        if [ $((SECONDS - shown)) -ge 5 ]; then
            shown=$SECONDS
            [ "$(id -u)" = 0 ] || sudo -n -v 2>/dev/null || true
            say "$words: $((SECONDS - start)) s: $(${state:-last_line "$log"})"
        fi
    done
    wait "$job" || status=$?
    trap - INT TERM HUP
    if [ "$status" != 0 ]; then
        tail -n 25 "$log" >&2
        die "$words failed (log: $log)"
    fi
    say "$words: done in $((SECONDS - start)) s"
}

last_line() {
    tail -n 1 "$1" 2>/dev/null | tr -d '\r' | cut -c1-80
}

# debian_mirror: print the Debian archive that this machine's apt uses, so that local mirrors and
# proxies keep working.
debian_mirror() {
    local uri
    uri=$(configured_mirror)
    if [ -z "$uri" ]; then
        as_root apt-get update >"$LOGS/apt.log" 2>&1 || true
        uri=$(configured_mirror)
    fi
    [ -n "$uri" ] || die "apt names no Debian archive on this machine: rrxe builds on Debian 12 or 13 (see 'apt-get indextargets')"
    echo "$uri"
}

configured_mirror() {
    command -v apt-get >/dev/null ||
        die "this machine has no apt-get: rrxe builds on Debian 12 or 13"
    # The security archive has the same origin, but is not a complete release.
    # shellcheck disable=SC2016  # apt's own variables
    apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
        awk '$1 == "Debian" && $2 !~ /security/ && !seen { print $3; seen = 1 }'
}

# apt_proxy_options: print, as options for mmdebstrap, the machine's apt proxies and certificates,
# and whether apt accepts expired package lists.
apt_proxy_options() {
    apt-config dump 2>/dev/null |
        grep -iE '^Acquire::(https?::.*(Proxy|CaInfo)|Check-(Valid-Until|Date))' | grep -v '""' || true
}
