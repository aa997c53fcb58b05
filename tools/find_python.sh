#!/bin/sh
# Prints the first Python on the path that can run Tenfold: 3.11 to 3.13, with venv.
for python in ${PYTHON:-} python3 python3.13 python3.12 python3.11; do
    if "$python" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
        2>/dev/null; then
        echo "$python"
        exit 0
    fi
done
echo "Tenfold needs Python 3.11, 3.12 or 3.13 with its venv module" \
     "(on Debian and Ubuntu: apt install python3-venv)." >&2
exit 1
