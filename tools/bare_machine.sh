#!/usr/bin/env bash
# `make demo` and `make test` on a machine that has nothing: a fresh Debian with Python and make, and a clean clone of HEAD in it.
#
#   tools/bare_machine.sh [--only demo|test] [--keep] [trixie|bookworm [PACKAGE…]]
#
# Packages are what this machine has beside Python and make: `gcc` for one with a compiler. TEST_ARGS is handed to `make test` as ARGS.
# Needs root and debootstrap. How this machine reaches its package registries (proxies, mirrors, certificates) is copied; nothing else is.
set -euo pipefail
only="" keep=""
while [[ ${1:-} == --* ]]; do
	case $1 in
		--only) only=$2; shift 2 ;;
		--keep) keep=yes; shift ;;
		*) echo "unknown: $1"; exit 2 ;;
	esac
done
suite=${1:-trixie}
shift || true
[ "$(id -u)" = 0 ] || { echo "a fresh root can be made by root only"; exit 2; }
command -v debootstrap >/dev/null || { echo "debootstrap is needed (apt-get install debootstrap)"; exit 2; }
here=$(cd "$(dirname "$0")/.." && pwd)
root=$(mktemp -d "${TMPDIR:-/tmp}/bare-$suite.XXXXXX")
trap '[ -n "$keep" ] && echo "kept: $root" || rm -rf --one-file-system "$root"' EXIT

echo "== a fresh $suite with python3, make${*:+, $*}"
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/*.{list,sources} 2>/dev/null | grep -oE 'https?://[^ ]+/debian/?( |$)' | head -1 || true)
debootstrap --variant=minbase --include="$(IFS=,; echo "python3,make,ca-certificates${*:+,$*}")" "$suite" "$root" ${mirror:-} >"$root.log" 2>&1 ||
	{ tail -5 "$root.log"; exit 1; }
rm -f "$root.log"
chmod 755 "$root"  # others than root live there, too: PostgreSQL runs as its own user

# How to reach registries: files, certificates, and variables that name either.
files=(/etc/resolv.conf /etc/hosts /etc/pip.conf /etc/npmrc /etc/ssl/certs/ca-certificates.crt "$HOME"/.npmrc "$HOME"/.config/pip/pip.conf
	"$HOME"/.pip/pip.conf "$HOME"/.m2/settings.xml "$HOME"/.config/go/env)
mapfile -t acquire < <(grep -lsE '^ *Acquire::' /etc/apt/apt.conf /etc/apt/apt.conf.d/* || true)
mapfile -t authorities < <(find /usr/local/share/ca-certificates -name '*.crt' 2>/dev/null || true)
for file in "${files[@]}" "${acquire[@]}" "${authorities[@]}"; do
	target=$root/${file#/}
	[[ $file == "$HOME"/* ]] && target=$root/home/${file#"$HOME"/}
	if [ -f "$file" ]; then mkdir -p "$(dirname "$target")" && cp -L "$file" "$target"; fi
done
mapfile -t variables < <(env | grep -iE '^(https?_proxy|no_proxy|all_proxy|pip_[a-z_]+|npm_config_[a-z_]+|go(proxy|sumdb|noproxy|flags)|maven_[a-z_]+|ssl_cert_(file|dir)|requests_ca_bundle|curl_ca_bundle|node_extra_ca_certs)=' || true)

git clone --quiet --no-hardlinks "$here" "$root/tandem"
inside() {
	# Mounts and processes go with the last command; the root is then only files.
	unshare --mount --pid --fork --kill-child bash -c '
		root=$1; shift
		mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev" && mount -t tmpfs tmpfs "$root/tmp"
		exec chroot "$root" env -i HOME=/home LANG=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
	' bash "$root" "${variables[@]}" "$@"
}
[ "${#authorities[@]}" = 0 ] || inside update-ca-certificates >/dev/null 2>&1
failed=0
for command in ${only:-demo test}; do
	echo "== $suite${*:+ with $*}: make $command"
	began=$SECONDS
	code=0
	# the shell stays, as the first process: somebody has to reap what others leave behind
	inside bash -c "cd /tandem && make $command $([ "$command" = test ] && printf 'ARGS=%q' "${TEST_ARGS:-}"); exit \$?" || code=$?
	echo "== $suite${*:+ with $*}: make $command ended with $code after $((SECONDS - began)) s"
	[ "$code" = 0 ] || failed=1
done
exit $failed
