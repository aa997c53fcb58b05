#!/bin/sh
# Backs up what Tenfold cannot make again: the registry, the adapters' bytes and, where there is a
# file store, tenants' files. Redis holds nothing that must be kept.
#   TENFOLD_OWNER_DATABASE_URL=... TENFOLD_ADAPTER_STORE=... deploy/back-up.sh FOLDER
# The role must read every row: a superuser, or one with BYPASSRLS, because row-level security is
# forced on the owner of the tables as well. The registry comes first: what it names is in the store
# for ten minutes more at least. A store that is a bucket has versions and copies of its own.
# Not in it, and as needful: the pepper and the envelope keys.
set -eu
folder=${1:?usage: back-up.sh FOLDER}
url=$(printf %s "${TENFOLD_OWNER_DATABASE_URL:?}" | sed 's/+asyncpg//')
umask 077
mkdir -p "$folder"
pg_dump --format=custom --file="$folder/registry.dump" --dbname="$url"
pack() {
    tar --create --file="$folder/$1" --exclude='./.staging' --directory="$2" .
}
case ${TENFOLD_ADAPTER_STORE:-} in
    *://* | '') ;;
    *) pack adapters.tar "$TENFOLD_ADAPTER_STORE" ;;
esac
if [ -n "${TENFOLD_FILE_STORE:-}" ]; then
    pack files.tar "$TENFOLD_FILE_STORE"
fi
