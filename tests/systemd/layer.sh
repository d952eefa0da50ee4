#!/bin/bash
# What the tests' hosts have beyond this one: an ssh server, and a systemd of 254 or newer, which keeps an fd store over a
# stop. Of Debian's packages, unpacked into a folder that is laid over the root of these hosts, and installed nowhere.
#
# Prints the folder; it is made once. Exit status 77: it cannot be had here, the last line of stderr says why.
set -euo pipefail

folder=${XDG_CACHE_HOME:-$HOME/.cache}/mooncake-mc/hosts

cannot() {
    echo "no ssh server and no newer systemd for the tests' hosts: $*" >&2
    exit 77
}

# Of this folder alone: what this host's apt knows stays as it is.
apt_get() {
    timeout 100 apt-get -qq -o Dir::Etc::sourcelist="$work/sources" -o Dir::Etc::sourceparts=- \
        -o Dir::State::lists="$work/lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= "$@"
}

fetch() {
    local release packages=(openssh-server libwrap0) keys=/usr/share/keyrings/debian-archive-keyring.gpg
    release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    for suite in "$release" "$release-backports"; do
        echo "deb [signed-by=$keys] http://deb.debian.org/debian $suite main"
    done >"$work/sources"
    mkdir -p "$work/lists/partial" "$work/root/usr"
    [ "$(systemctl --version | awk 'NR == 1 { print $2 }')" -ge 254 ] ||
        packages+=("systemd/$release-backports" "libsystemd-shared/$release-backports")
    apt_get update && cd "$work" && apt_get download "${packages[@]}"
}

if [ ! -e "$folder/usr" ]; then
    grep -qx ID=debian /etc/os-release || cannot "this is no Debian"
    mkdir -p "${folder%/*}"
    work=$(mktemp -d "$folder.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    fetch 2>"$work/errors" >&2 || cannot "$(grep -v '^W:' "$work/errors" | tail -1)"
    for package in "$work"/*.deb; do dpkg -x "$package" "$work/unpacked"; done
    # On a host /bin and /lib are links into /usr.
    for part in bin lib sbin; do
        [ ! -d "$work/unpacked/$part" ] || cp -a "$work/unpacked/$part" "$work/unpacked/usr"
    done
    chmod 755 "$work/unpacked"
    rm -rf "$work"/unpacked/usr/share "$folder"
    mkdir "$folder"
    mv "$work/unpacked/usr" "$folder"
fi
echo "$folder"
