#!/bin/sh
# Measures on a machine without a network: what it lacks was carried there in one folder.
#
#   sh tools/gpu/carried.sh FOLDER [WHAT...] [--out /ABSOLUTE/FILE] [OPTION...]
#
# FOLDER is what `./dev gpu pack` makes. The machine's own packages, PyTorch among them, are used as
# they are; nothing is installed on it.
set -eu

folder=$(realpath "$1")
shift
case " $*" in
*" --out "[!/]* | *" --out="[!/]*)
	echo "carried.sh: --out takes an absolute path: this runs in a folder that is removed" >&2
	exit 2
	;;
esac
root=$(realpath "$(dirname "$0")/../..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for package in "$folder"/*.deb; do
	[ -e "$package" ] || continue
	mkdir -p "$root/build/tools"
	dpkg -x "$package" "$root/build/tools"
done
mkdir -p "$root/build/gpu"
cp "$folder"/programs/* "$root/build/gpu/"
LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$root/build/tools/usr/lib/$(uname -m)-linux-gnu"
export LD_LIBRARY_PATH

python3 -m venv --without-pip "$work/venv"
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
python3 -c 'import sys; print(*(path for path in sys.path if path.endswith("-packages")), sep="\n")' \
	>"$site/machine.pth"
PYTHONPATH=$(echo "$folder"/pip-*.whl) python3 -m pip --python "$work/venv/bin/python" install --quiet --no-index --no-deps "$folder"/*.whl

# Away from the checkout, whose own gpushare/ has no libraries in it.
mkdir "$work/run"
ln -s "$root/tests" "$root/tools" "$root/libhook" "$work/run/"
cd "$work/run"
status=0
"$work/venv/bin/python" -m tools.gpu "$@" || status=$?
exit "$status"
