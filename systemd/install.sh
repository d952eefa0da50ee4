#!/usr/bin/env bash
# Installs Mooncake MC on this host, or brings an installed one up to this source; run it again at any time.
#
#   systemd/install.sh [--prefix DIR] [--python PATH] [--wheelhouse DIR] [--no-engine] [--s3] [--dry-run]
#   systemd/install.sh --uninstall [--purge] [--prefix DIR] [--dry-run]
#
#   --prefix DIR      where the program goes; /opt/mooncake
#   --python PATH     interpreter of the venv, 3.11 or newer; /usr/bin/python3, else the one in PATH
#   --wheelhouse DIR  install from this folder alone, without a network: see `make wheelhouse`
#   --no-engine       without torch: a host that runs neither mc-prefill nor mc-decode
#   --s3              with the client for an object store below the SSD: [object] of mc-cachenode
#   --dry-run         say what would be done
#   --uninstall       stop the daemons and remove the program; /etc/mooncake and /var/lib/mooncake stay
#   --purge           with --uninstall: remove those, what overrides units, and the user mooncake too
#
# Every version gets a venv of its own under DIR/releases, and DIR/current is a link to the one in use: it is switched
# only when the new one is complete, so a failure leaves the earlier version as it was. Running daemons are not restarted.
#
# Exit status: 0 done, 1 failed on the way, 2 usage, 3 this host lacks something and nothing was changed.
set -euo pipefail
umask 022 # the daemons' user reads what root puts here

readonly UNIT_DIR=/usr/local/lib/systemd/system  # below /etc/systemd/system, which stays the operator's
readonly SYSUSERS=/usr/local/lib/sysusers.d/mooncake.conf
readonly TMPFILES=/usr/local/lib/tmpfiles.d/mooncake.conf
readonly MAN_DIR=/usr/local/share/man
readonly CONFIG_DIR=/etc/mooncake
readonly CREDENTIALS_DIR=/etc/credstore # keys of the daemons, where mc-deploy(7) puts them
readonly STATE_DIR=/var/lib/mooncake
readonly OVERRIDES_DIR=/etc/systemd/system # the operator's
readonly SEGMENTS_UNIT=var-lib-mooncake-segments.mount

prefix=/opt/mooncake python='' wheelhouse='' engine=engine s3='' extras='' dry_run=0 action=install purge=0
source_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
work='' unfinished='' written=()

say() { printf 'install.sh: %s\n' "$*" >&2; }
usage_error() { say "$*; see systemd/install.sh --help"; exit 2; }
lacks() { say "$*"; exit 3; }

# Do it, or in a dry run say so.
run() {
    if [ "$dry_run" = 1 ]; then
        printf 'would run: %s\n' "${*@Q}"
    else
        "$@"
    fi
}

clean_up() {
    local status=$?
    [ -z "$work" ] || rm -rf "$work"
    if [ -n "$unfinished" ]; then
        rm -rf "$unfinished"
        say "failed; what was installed before is unchanged. Put right what the lines above say and run it again"
    fi
    exit "$status"
}

parse() {
    while [ $# -gt 0 ]; do
        case $1 in
            --prefix | --python | --wheelhouse)
                [ $# -ge 2 ] || usage_error "$1 needs a value"
                case $1 in
                    --prefix) prefix=${2%/} ;;
                    --python) python=$2 ;;
                    --wheelhouse) wheelhouse=$2 ;;
                esac
                shift
                ;;
            --no-engine) engine='' ;;
            --s3) s3=s3 ;;
            --dry-run) dry_run=1 ;;
            --uninstall) action=uninstall ;;
            --purge) purge=1 ;;
            -h | --help) sed -n '2,/^set -/{/^set -/d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}"; exit 0 ;;
            *) usage_error "unknown argument $1" ;;
        esac
        shift
    done
    extras=${engine}${engine:+${s3:+,}}${s3}
    extras=${extras:+[$extras]}
    [[ $prefix =~ ^/[A-Za-z0-9._/-]+$ ]] || usage_error "--prefix: '$prefix' is not an absolute path of plain characters"
    [ "$purge" = 0 ] || [ "$action" = uninstall ] || usage_error "--purge goes with --uninstall"
}

# ---- checks; nothing is changed before they have passed

check_host() {
    local tool
    if [ "$(id -u)" != 0 ] && [ "$dry_run" = 0 ]; then
        lacks "only root may write to $prefix and $UNIT_DIR: sudo systemd/install.sh ..., or --dry-run"
    fi
    for tool in systemctl systemd-sysusers systemd-tmpfiles sha256sum install; do
        command -v "$tool" >/dev/null || lacks "$tool is missing; the daemons run under systemd (apt install systemd coreutils)"
    done
    case $prefix/ in
        /home/* | /root/* | /run/user/* | /tmp/* | /var/tmp/*)
            lacks "the units see nothing under $prefix (ProtectHome, PrivateTmp): choose another --prefix, e.g. /opt/mooncake" ;;
    esac
    if [ -e "$prefix/bin" ] && [ ! -L "$prefix/bin" ]; then
        lacks "$prefix/bin was not made by this script: mv $prefix $prefix.old, and run it again"
    fi
}

# Prints why not; the units run as another user and without home directories, so a Python in one is no use.
python_problem() {
    "$1" - <<'PYTHON' 2>&1 || true
import os, sys
if sys.version_info < (3, 11):
    sys.exit(f"it is {sys.version.split()[0]}, and 3.11 or newer is needed")
try:
    import ensurepip, venv
except ImportError:
    sys.exit("it has no venv module (apt install python3-venv)")
path = os.path.realpath(sys.executable)
if path.startswith(("/home/", "/root/", "/run/user/")):
    sys.exit(f"it is {path}, and the units see no home directories")
folder = os.path.dirname(path)
while folder != "/":
    if not os.stat(folder).st_mode & 1:
        sys.exit(f"{folder} is closed to the user mooncake")
    folder = os.path.dirname(folder)
PYTHON
}

choose_python() {
    local candidate problem problems=''
    for candidate in "${python:-/usr/bin/python3}" ${python:+""} /usr/local/bin/python3 python3; do
        [ -n "$candidate" ] || break # one that was named is the only one tried
        command -v "$candidate" >/dev/null || continue
        problem=$(python_problem "$candidate")
        if [ -z "$problem" ]; then
            python=$(command -v "$candidate")
            return
        fi
        problems+=" $candidate: $problem."
    done
    lacks "no Python fits.${problems:- There is none.} Install one (apt install python3 python3-venv) or name one with --python"
}

check_source() {
    local folder
    for folder in systemd configs man; do
        [ -d "$source_dir/$folder" ] || lacks "$source_dir/$folder is missing; run the install.sh of a complete source"
    done
    # The folder that `make wheelhouse` fills holds this script, too.
    [ -n "$wheelhouse" ] || [ -e "$source_dir/pyproject.toml" ] || wheelhouse=$source_dir
    [ -n "$wheelhouse" ] || return 0
    [ -d "$wheelhouse" ] || lacks "--wheelhouse: there is no folder $wheelhouse; make one with: make wheelhouse"
    wheelhouse=$(cd "$wheelhouse" && pwd)
    compgen -G "$wheelhouse/mooncake_mc-*.whl" >/dev/null ||
        lacks "$wheelhouse holds no mooncake_mc wheel; make it anew: make wheelhouse"
    [ -z "$s3" ] || compgen -G "$wheelhouse/boto3-*.whl" >/dev/null ||
        lacks "$wheelhouse holds no boto3: fill it with make wheelhouse S3=1, or install without --s3"
    [ -z "$engine" ] || compgen -G "$wheelhouse/torch-*.whl" >/dev/null ||
        lacks "$wheelhouse holds no torch: fill it with make wheelhouse, or install with --no-engine"
}

# ---- the program

# What a venv was made of: the same again needs no new one.
fingerprint() {
    {
        "$python" -c 'import sys; print(sys.version, sys.base_prefix)'
        echo "$extras"
        if [ -n "$wheelhouse" ]; then
            cd "$wheelhouse" && sha256sum ./*.whl
        else
            cd "$source_dir" && find pyproject.toml mcctl daemons -type f ! -path '*/__pycache__/*' -print0 |
                LC_ALL=C sort -z | xargs -0 sha256sum
        fi
    } | sha256sum | cut -c 1-12
}

build_release() {
    local requirement pip=("$release/bin/python" -m pip --disable-pip-version-check --no-input)
    if [ -e "$release/complete" ]; then
        say "$release is there already"
        return
    fi
    say "making $release with $python${engine:+ (torch takes a while)}"
    run mkdir -p "$prefix/releases"
    [ "$dry_run" = 1 ] || unfinished=$release
    run rm -rf "$release"
    run "$python" -m venv "$release"
    if [ -n "$wheelhouse" ]; then
        export PIP_CONFIG_FILE=/dev/null # which could name other places
        run "${pip[@]}" install --quiet --no-compile --no-index --find-links "$wheelhouse" "mooncake-mc$extras"
    else
        # From a copy: setuptools builds in the source's own folder, and would leave root's files there.
        run mkdir "$work/source"
        run cp -r "$source_dir"/{pyproject.toml,README.md,LICENSE,mcctl,daemons} "$work/source"
        requirement="$work/source$extras"
        run "${pip[@]}" install --quiet --no-compile "$requirement"
    fi
    # On all cores, where pip would take one. A file of a package that is for another Python is none of ours.
    run "$release/bin/python" -m compileall -qq -j 0 "$release/lib" || true
    try_release
    run touch "$release/complete"
}

try_release() {
    [ "$dry_run" = 1 ] || { "$release/bin/mcctl" --version && "$release/bin/mc-master" --check; } >/dev/null
}

# In one step, so that no daemon starts in between. With the other links DIR is a venv to any bin/python.
switch_to_release() {
    local part
    for part in bin lib pyvenv.cfg; do run ln -sfn "current/$part" "$prefix/$part"; done
    run ln -sfn "releases/${release##*/}" "$prefix/current.new"
    run mv -fT "$prefix/current.new" "$prefix/current"
    unfinished=''
}

# All but this one, the one before, and those that daemons still run from: Python loads parts of itself late.
remove_old_releases() {
    local folder kept=$1 processes=(/proc/[0-9]*/cmdline)
    for folder in "$prefix"/releases/*; do
        case $folder in "$release" | "$kept" | *'*') continue ;; esac
        printf '%s/\n' "$folder" | grep -qsF --file=- "${processes[@]}" || run rm -rf "$folder"
    done
}

# ---- files outside the prefix

# put SOURCE TARGET [MODE]: atomically, with the prefix that was chosen in place of the default.
put() {
    written+=("$2")
    if [ "$dry_run" = 1 ]; then
        printf 'would write: %s\n' "$2"
        return
    fi
    sed "s#/opt/mooncake/#$prefix/#g" "$1" >"$work/file"
    cmp -s "$work/file" "$2" && return
    install -D -m "${3:-644}" "$work/file" "$2.mooncake-new"
    mv -f "$2.mooncake-new" "$2"
}

put_units() {
    local file
    for file in "$source_dir"/systemd/*.{service,target,slice,mount}; do
        put "$file" "$UNIT_DIR/${file##*/}"
        [ ! -f "/etc/systemd/system/${file##*/}" ] ||
            say "/etc/systemd/system/${file##*/} hides the unit of this version: remove it, or make a drop-in of it (systemctl edit)"
    done
    put "$source_dir/systemd/mooncake.sysusers.conf" "$SYSUSERS"
    put "$source_dir/systemd/mooncake.tmpfiles.conf" "$TMPFILES"
    run systemd-sysusers "$SYSUSERS"
    run systemd-tmpfiles --create "$TMPFILES"
}

put_pages() {
    local page
    for page in "$source_dir"/man/*.[1-8]; do
        put "$page" "$MAN_DIR/man${page##*.}/${page##*/}"
    done
    put "$source_dir/configs/grafana-dashboard.json" /usr/local/share/mooncake/grafana-dashboard.json
}

put_completions() {
    local shell target
    for shell in bash zsh fish; do
        case $shell in
            bash) target=/usr/local/share/bash-completion/completions/mcctl ;;
            zsh) target=/usr/local/share/zsh/site-functions/_mcctl ;;
            fish) target=/usr/local/share/fish/vendor_completions.d/mcctl.fish ;;
        esac
        [ "$dry_run" = 1 ] || _MCCTL_COMPLETE=source_$shell "$release/bin/mcctl" >"$work/completion"
        put "$work/completion" "$target"
    done
    written+=(/usr/local/bin/mcctl)
    run mkdir -p /usr/local/bin
    run ln -sfn "$prefix/bin/mcctl" /usr/local/bin/mcctl
}

# A default that nobody edited is replaced; beside an edited one the new one is laid as .new, once.
put_configs() {
    local file name target shipped
    for file in "$source_dir"/configs/*.toml; do
        name=${file##*/} target=$CONFIG_DIR/${file##*/} shipped=$prefix/shipped/${file##*/}
        if [ -e "$target" ] && ! cmp -s "$target" "$file" && ! cmp -s "$target" "$shipped"; then
            if ! cmp -s "$file" "$shipped"; then
                say "$target was edited and stays; the new defaults are beside it in $name.new"
                run install -m 640 -g mooncake "$file" "$target.new"
            fi
        else
            run install -m 640 -g mooncake "$file" "$target"
        fi
        run install -D -m 644 "$file" "$shipped"
    done
}

# What an earlier version put and this one does not.
remove_stale() {
    local file
    if [ -e "$prefix/manifest" ]; then
        while read -r file; do
            [[ " ${written[*]} " == *" $file "* ]] || run rm -f "$file"
        done <"$prefix/manifest"
    fi
    [ "$dry_run" = 1 ] || printf '%s\n' "${written[@]}" >"$prefix/manifest"
}

reload_systemd() {
    [ ! -d /run/systemd/system ] || run systemctl daemon-reload
}

install_all() {
    local before
    check_host
    check_source
    choose_python
    release=$prefix/releases/$(fingerprint)
    before=$(readlink -e "$prefix/current" || true)
    work=$(mktemp -d)
    trap clean_up EXIT
    build_release
    put_units
    put_configs
    put_pages
    put_completions
    remove_stale
    switch_to_release
    reload_systemd
    remove_old_releases "$before"
    if [ "$dry_run" = 1 ]; then
        say "dry run: nothing was changed"
    elif [ -n "$before" ] && [ "$before" != "$release" ]; then
        say "installed; daemons that run go on with the earlier version until they are restarted, one by one: man mc-deploy"
    else
        say "installed; next: man mc-deploy"
    fi
}

# ---- and away with it

our_units() {
    {
        systemctl list-units --all --plain --no-legend 'mc-master.service' 'mc-cachenode@*' 'mc-prefill@*' 'mc-decode@*' \
            'mc-gateway@*' mooncake.target "$SEGMENTS_UNIT" 2>/dev/null | awk '{ print $1 }'
        find /etc/systemd/system/{mooncake,multi-user}.target.wants -type l \( -name 'mc-*' -o -name 'mooncake.*' \) \
            -printf '%f\n' 2>/dev/null
    } | sort -u
}

uninstall_all() {
    check_host
    if [ ! -e "$prefix/manifest" ]; then
        say "nothing is installed in $prefix"
    else
        remove_program
    fi
    if [ "$purge" = 1 ]; then
        run rm -rf "$CONFIG_DIR" "$STATE_DIR" "$OVERRIDES_DIR"/{mc-{master,cachenode@*,prefill@*,decode@*,gateway@*}.service,mooncake.{target,slice},"$SEGMENTS_UNIT"}.d
        run rm -f /etc/sysctl.d/mooncake.conf # huge pages, as mc-deploy(7) has them
        run rm -f "$CREDENTIALS_DIR"/mc-{master,cachenode,prefill,decode,gateway}{,-*}.{key,s3} "$CREDENTIALS_DIR/mooncake.secret"
        ! getent passwd mooncake >/dev/null || run userdel mooncake
        ! getent group mooncake >/dev/null || run groupdel mooncake
        reload_systemd
    else
        say "$CONFIG_DIR, $STATE_DIR and the user mooncake stay; --uninstall --purge removes them too"
    fi
}

remove_program() {
    local file units=()
    mapfile -t units < <(our_units)
    if [ ${#units[@]} -gt 0 ]; then
        say "stopping ${units[*]}"
        run systemctl disable --quiet "${units[@]}"
        [ ! -d /run/systemd/system ] || run systemctl stop "${units[@]}"
    fi
    # Segments and indexes are memory, which nobody else would give back; on the mount they went with it.
    ! getent passwd mooncake >/dev/null || run rm -rf "/dev/shm/mooncake-$(id -u mooncake)"
    while read -r file; do run rm -f "$file"; done <"$prefix/manifest"
    run rm -rf "$prefix"/{releases,shipped,current,bin,lib,pyvenv.cfg,manifest}
    [ "$dry_run" = 1 ] || rmdir "$prefix" 2>/dev/null || say "$prefix is not empty and stays"
    reload_systemd
}

parse "$@"
"${action}_all"
