#!/bin/sh
# Restores what back-up.sh made into an empty database and empty folders.
#   TENFOLD_OWNER_DATABASE_URL=... TENFOLD_ADAPTER_STORE=... deploy/restore.sh FOLDER
# The roles tenfold_app and tenfold_worker must be there; the role that restores needs what the one
# that backed up had. Start Tenfold afterwards, with the same pepper and envelope keys and any Redis, of
# the same version or a newer one: then migrate first.
set -eu
folder=${1:?usage: restore.sh FOLDER}
url=$(printf %s "${TENFOLD_OWNER_DATABASE_URL:?}" | sed 's/+asyncpg//')
pg_restore --exit-on-error --single-transaction --no-owner --dbname="$url" "$folder/registry.dump"
unpack() {
    mkdir -p "$2"
    tar --extract --file="$folder/$1" --directory="$2"
}
if [ -f "$folder/adapters.tar" ]; then
    unpack adapters.tar "${TENFOLD_ADAPTER_STORE:?}"
fi
if [ -f "$folder/files.tar" ]; then
    unpack files.tar "${TENFOLD_FILE_STORE:?}"
fi
