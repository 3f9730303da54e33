#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gpushare-undo: removes what `gpushare setup` created on this machine, and nothing else.
#
# It needs sh, awk and coreutils (or busybox), and nothing of gpushare: it works after the package,
# its virtual environment and their Python are gone. The record of what setup created is at the end
# of this file. Every step can be repeated: if it is interrupted, run it again.
#
# Exit status: 0 if done, 1 for an error, 2 for invalid options, 3 if containers still use gpushare.
# In the last case nothing is changed.
# shellcheck disable=SC2329 # `each` calls functions by name
set -u
export LC_ALL=C

usage='usage: gpushare-undo [--dry-run] [--root DIR]'
record=$0
command=/usr/local/sbin/gpushare-undo
state=/var/lib/gpushare
units=/etc/systemd/system
run=/run/gpushare
tab=$(printf '\t')
root='' dry='' scratch=''

main() {
    while [ $# -gt 0 ]; do
        case $1 in
        --dry-run) dry=1 ;;
        --root) [ $# -gt 1 ] || refuse 2 "$usage" && shift && root=${1%/} ;;
        --help) echo "$usage" && exit ;;
        *) refuse 2 "$1: unknown. $usage" ;;
        esac
        shift
    done
    launcher=$(records launcher)
    if [ -z "$root" ]; then
        [ -n "$dry" ] || [ "$(id -u)" = 0 ] || refuse 1 "undo changes this system. Use sudo."
        refuse_while_used
    fi
    scratch=$(mktemp -d) || exit
    trap 'rm -rf "$scratch"' EXIT
    trap 'exit 1' HUP INT TERM
    each engine unregister
    unregister gpushare - -
    [ -n "$root" ] || stop_all
    each file remove_file
    each link remove_link
    each tree remove_tree
    [ -n "$root" ] || remove_run
    [ -n "$root" ] || [ ! -d /run/systemd/system ] || act "systemctl daemon-reload" systemctl daemon-reload
    remove_folders
    say_what_stays
}

# Messages

refuse() { # status text...
    status=$1
    shift
    printf 'gpushare: %s\n' "$*" >&2
    exit "$status"
}

say() { printf '%-6s%s\n' "$1" "$2"; }

act() { # text command...
    text=$1
    shift
    if [ -n "$dry" ]; then
        say would "$text"
    else
        say 'do' "$text"
        "$@" || refuse 1 "$text: failed. Nothing after this step was removed. Run it again."
    fi
}

# The record: lines of "#=", a kind and fields, separated by tabs

records() { sed -n "s/^#=$tab$1$tab//p" "$record"; }

each() { # kind function
    list=$(records "$1")
    while IFS=$tab read -r a b c d e; do
        [ -z "$a" ] || "$2" "$a" "$b" "$c" "$d" "$e"
    done <<END
$list
END
}

digest() { sha256sum <"$1" | cut -d' ' -f1; }

# Containers

refuse_while_used() {
    users=$({ shares; whole_cards; monitors; } | sort -u)
    [ -z "$users" ] && return
    names=$(printf '%s\n' "$users" | paste -s -d, - | sed 's/,/, /g')
    refuse 3 "these containers still use gpushare: $names. They need its programs, libraries and" \
        "daemon, so nothing was changed. Stop them first, then run gpushare-undo again."
}

# The processes that have a tenant's pages mounted, by container
shares() {
    grep -lF -e ' /.gpushare/tenant ' -e ' /opt/gpushare/tenant ' /proc/[0-9]*/mountinfo 2>/dev/null |
        while IFS=/ read -r _ _ pid _; do title "$pid"; done
}

# The running containers of gpushared's ledger
whole_cards() {
    for entry in "$run"/ledger/[0-9a-f]*; do
        [ -f "$entry" ] || continue
        pid=$(field pid "$entry") started=$(field starttime "$entry")
        [ "${pid:-0}" != 0 ] && [ "$(started_at "$pid")" = "$started" ] && name_of "$entry"
    done
}

# The containers that an engine has created with the launcher, and stops with it
monitors() {
    [ -n "$launcher" ] || return 0
    for process in /proc/[0-9]*; do
        if grep -qs "\"$launcher\"" "$process/cwd/options.json"; then
            id=$(basename "$(readlink "$process/cwd")")
        elif tr '\0' '\n' 2>/dev/null <"$process/cmdline" | grep -qxF "$launcher"; then
            case $(cat "$process/comm" 2>/dev/null) in conmon*) ;; *) continue ;; esac
            id=$(tr '\0' '\n' 2>/dev/null <"$process/cmdline" | sed -n '/^-c$/{n;p;q;}')
        else
            continue
        fi
        known "$id" || printf '%.12s\n' "$id"
    done
}

field() { sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p" "$2"; }

started_at() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

name_of() { # ledger entry
    name=$(field name "$1")
    [ -n "$name" ] && echo "$name" || printf '%.12s\n' "$(field id "$1")"
}

known() { # container id
    entry=$(grep -ls "\"id\":\"$1\"" "$run"/ledger/[0-9a-f]* | head -n 1)
    [ -n "$entry" ] && name_of "$entry"
}

title() { # pid
    # The id of a container, or that of a command of gpushare run.
    id=$(sed -n 's/.*\([0-9a-f]\{64\}\).*/\1/p; s/.*\/gpushare\/\(host-[0-9a-f]\{8\}\)$/\1/p' \
        "/proc/$1/cgroup" 2>/dev/null | head -n 1)
    case $id in
        '') echo "process $1" ;;
        host-*) known "$id" || echo "process $1" ;;
        *) known "$id" || printf '%.12s\n' "$id" ;;
    esac
}

# Engines

unregister() { # engine reload restart
    engine=$1 reload=$2 restart=$3 changed='' stale=''
    list=$(records edit)
    while IFS=$tab read -r owner kind origin sum path; do
        [ "$owner" != "$engine" ] || unedit "$kind" "$origin" "$sum" "$path"
    done <<END
$list
END
    if [ -z "$changed" ] || [ "$restart" = - ]; then
        return
    elif [ -n "$root" ]; then
        say ok "$engine reads it at its next start"
    elif [ "$reload" != - ] && [ -z "$stale" ] && [ -d /run/systemd/system ]; then
        act "$reload" sh -c "$reload"
    else
        say next "restart $engine to unload the runtime: $restart"
    fi
}

# Restore a file that nobody has edited since; otherwise remove gpushare's entries only.
unedit() { # kind origin digest path
    file=$root$4
    backup=$file.before-gpushare
    if [ ! -e "$file" ]; then
        [ ! -e "$backup" ] || act "remove $4.before-gpushare" rm -f "$backup"
        return
    fi
    if [ "$(digest "$file")" = "$3" ] && [ "$2" = new ]; then
        restore "remove $4" rm -f "$file"
    elif [ "$(digest "$file")" = "$3" ] && [ -e "$backup" ]; then
        restore "restore $4, which nobody has edited since setup" put "$backup" "$file"
    elif [ "$1" = own ]; then
        keep_own "$4"
    else
        take_out "$1" "$2" "$4"
    fi
    [ ! -e "$backup" ] || act "remove $4.before-gpushare" rm -f "$backup"
}

restore() { # text command...
    note_stale "$backup"
    changed=1
    act "$@"
    show_diff "$backup"
}

show_diff() { # the file as it will be
    [ -z "$dry" ] || [ ! -e "$1" ] || diff -u "$file" "$1" 2>/dev/null || :
}

# A file that only gpushare has written: nothing may read it without gpushare's programs.
keep_own() { # path
    grep -qs -e gpushare "$file" || return 0
    act "$1 was edited since setup: move it to $1.edited" mv -f "$file" "$file.edited"
    changed=1
}

take_out() { # kind origin path
    # awk does not report whether the last line ends.
    { cat "$file" && printf x; } >"$scratch/file" || refuse 1 "$3 cannot be read"
    : >"$scratch/backup"
    [ ! -e "$backup" ] || cat "$backup" >"$scratch/backup" || refuse 1 "$backup cannot be read"
    if ! "without_$1" "$scratch/file" "$scratch/backup" >"$scratch/left" ||
        grep -v '^[[:space:]]*#' "$scratch/left" | grep -q gpushare-runtime; then
        refuse 1 "$3 was edited since setup, and its layout prevents a safe change. Remove the" \
            "runtime gpushare from it, then run gpushare-undo again. Nothing else was removed."
    fi
    cmp -s "$file" "$scratch/left" && return
    note_stale "$scratch/left"
    changed=1
    if [ "$2" = new ] && is_hollow "$scratch/left"; then
        act "remove $3" rm -f "$file"
        return
    fi
    act "remove gpushare's part of $3, which was edited since setup" put "$scratch/left" "$file"
    show_diff "$scratch/left"
}

# Replace a file in one rename, with its mode and owner; a symbolic link is kept.
put() { # content file
    target=$(readlink -f "$2")
    draft=${target%/*}/.${target##*/}.gpushare-undo
    cp -p "$target" "$draft" && cat "$1" >"$draft" && mv -f "$draft" "$target"
}

# After a reload, dockerd keeps keys that are missing from its file.
note_stale() { # the file as it will be
    case $(tr -d ' \t\r\n' 2>/dev/null <"$1") in *'"runtimes":{"'*) ;; *) stale=1 ;; esac
    case $(tr -d ' \t\r\n' <"$file") in
    *'"default-runtime":"gpushare"'*) grep -qs '"default-runtime"' "$1" || stale=1 ;;
    esac
}

is_hollow() {
    ! grep -qv -e '^[[:space:]]*$' -e '^[[:space:]]*[{}][[:space:]]*$' -e '^{}$' -e '^version = ' \
        -e '^\[[^]]*\]$' -e '^{{ template "base" . }}$' "$1"
}

# Print the user's YAML without the lines that setup added (gpushare/setup/plan.py).
without_yaml() { # file
    awk '
{ lines[NR] = $0 }
END {
    sub(/x$/, "", lines[NR])
    for (i = 1; i <= NR; i++)
        if (lines[i] !~ /^ *([a-z]+: [{])?(cdi_spec|mode): [^ ]+  # added by gpushare setup$/)
            printf "%s%s", lines[i], i < NR ? "\n" : ""
}' "$1"
}

without_json() { awk '@json.awk@' "$@"; } # file backup

without_toml() { awk '@toml.awk@' "$@"; } # file backup

# Programs

stop_all() {
    list=$(records file | cut -f2 | sed -n "s|^$units/\([^/]*\)\$|\1|p")
    for unit in $list; do
        if [ -d /run/systemd/system ] && [ -e "$units/$unit" ]; then
            act "stop and disable $unit" systemctl --quiet disable --now "$unit"
        fi
    done
    each node leave_cluster
    pid=$(cat "$run/lock" 2>/dev/null)
    if [ -n "$pid" ] && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q gpushared; then
        act "stop gpushared (process $pid)" stop "$pid"
    fi
}

stop() { # pid
    kill "$1" || return
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
        [ -d "/proc/$1" ] || return 0
        sleep 1
    done
    return 1
}

# A cluster that does not answer stops no undo.
leave_cluster() { # program kubeconfig
    [ -e "$2" ] || return 0
    text="remove the node's labels and ResourceSlices from the cluster"
    if [ ! -x "$1" ]; then
        say next "$text: ${1##*/} is gone. Use kubectl"
    elif [ -n "$dry" ]; then
        say would "$text (${1##*/} --remove)"
    else
        say 'do' "$text (${1##*/} --remove)"
        timeout 120 "$1" --remove || say next "$text: run $1 --remove again"
    fi
}

# Files

remove_file() { # digest path
    [ -e "$root$2" ] || return 0
    case $2 in
    "$state"/*) ;; # gpushared updates these
    *)
        if [ "$(digest "$root$2")" != "$1" ]; then
            say keep "$2: it was edited since setup"
            return
        fi
        ;;
    esac
    act "remove $2" rm -f "$root$2"
}

remove_link() { # target path
    [ -L "$root$2" ] || return 0
    if [ "$(readlink "$root$2")" = "$1" ]; then
        act "remove $2" rm -f "$root$2"
    else
        say keep "$2: it leads to $(readlink "$root$2") since setup"
    fi
}

remove_tree() { # path
    [ ! -d "$root$1" ] || act "remove $1, with everything in it" rm -rf "$root$1"
}

# What gpushared leaves until the next boot: the ledger, and mounts without a container
remove_run() {
    [ -d "$run" ] || return 0
    act "remove $run, with everything in it" remove_mounts
}

remove_mounts() {
    cut -d' ' -f5 /proc/self/mountinfo | grep "^$run\(/\|\$\)" | sort -r |
        while read -r mount; do umount -l "$mount" || return 1; done && rm -rf "$run"
}

remove_folders() {
    folders=$(records folder | sed '1!G;h;$!d')
    [ -n "$dry" ] || remove_empty
    [ ! -e "$root$command" ] || act "remove $command" rm -f "$root$command"
    [ -n "$dry" ] || remove_empty
    [ -n "$dry" ] || printf '%s\n' "$folders" | while read -r folder; do
        [ -z "$folder" ] || [ ! -d "$root$folder" ] || say keep "$folder: it is not empty"
    done
}

remove_empty() {
    printf '%s\n' "$folders" | while read -r folder; do
        [ -z "$folder" ] || rmdir "$root$folder" 2>/dev/null || :
    done
}

say_what_stays() {
    path=/etc/cdi/gpushare.json
    [ ! -e "$root$path" ] ||
        say keep "$path, from 'gpushare cdi generate': remove it if no engine uses it"
    [ -n "$root" ] || [ -n "$dry" ] || say keep \
        "containers that were created with --runtime=gpushare: create them again without it"
}

main "$@"
exit
