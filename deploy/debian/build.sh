#!/bin/sh
# A Debian package from a wheel: a virtual environment under /opt/tandem, the systemd unit, a configuration to begin with.
# Usage: deploy/debian/build.sh dist/tandem_bus-*.whl [directory for the package]. Built for this machine's architecture and Python.
set -eu
wheel=$1
out=${2:-dist}
python=${PYTHON:-python3}
here=$(cd "$(dirname "$0")" && pwd)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

version=$(basename "$wheel" | cut -d- -f2)
architecture=$(dpkg --print-architecture)
needs=$("$python" -c 'import sys; print(f"python3.{sys.version_info.minor}")')

mkdir -p "$stage/DEBIAN" "$stage/opt" "$stage/usr/bin" "$stage/lib/systemd/system" "$stage/etc/tandem" "$stage/usr/share/doc/tandem-bus"
"$python" -m venv "$stage/opt/tandem"
"$stage/opt/tandem/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile "$wheel"
"$stage/opt/tandem/bin/python" -m pip uninstall --quiet --yes pip setuptools >/dev/null 2>&1 || true
find "$stage/opt/tandem" -name __pycache__ -type d -prune -exec rm -rf {} +
# What was made here must not know where it was made.
sed -i "s|$stage||g" "$stage/opt/tandem/pyvenv.cfg"
find "$stage/opt/tandem/bin" -type f -exec sed -i "s|$stage||g" {} +

ln -s /opt/tandem/bin/tandem "$stage/usr/bin/tandem"
cp "$here/../systemd/tandem.service" "$stage/lib/systemd/system/"
cp "$here/tandem.toml" "$stage/etc/tandem/"
cp "$here/../../LICENSE" "$stage/usr/share/doc/tandem-bus/copyright"
echo /etc/tandem/tandem.toml > "$stage/DEBIAN/conffiles"
cat > "$stage/DEBIAN/control" <<CONTROL
Package: tandem-bus
Version: $version
Architecture: $architecture
Maintainer: Tandem <tandem@localhost>
Depends: $needs
Section: net
Priority: optional
Description: message bus that speaks Azure Service Bus
 A broker with the wire protocol and the semantics of Azure Service Bus, built
 for the day the broker is down. Enable it with: systemctl enable --now tandem
CONTROL
cat > "$stage/DEBIAN/postinst" <<'POSTINST'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then systemctl daemon-reload; systemctl try-restart tandem.service; fi
POSTINST
cat > "$stage/DEBIAN/prerm" <<'PRERM'
#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl stop tandem.service || true; fi
PRERM
chmod 0755 "$stage/DEBIAN/postinst" "$stage/DEBIAN/prerm"
mkdir -p "$out"
dpkg-deb --root-owner-group --build "$stage" "$out/tandem-bus_${version}_${architecture}.deb"
