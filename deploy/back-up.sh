#!/bin/sh
# Backs up what Tenfold cannot make again: the registry, the adapters' bytes and, where there is a
# file store, tenants' files.
#   TENFOLD_OWNER_DATABASE_URL=... TENFOLD_ADAPTER_STORE=... TENFOLD_FILE_STORE=... back-up.sh FOLDER
# makes registry.dump, adapters.tar and files.tar there. Redis holds nothing that must be kept.
# The role must read every row: a superuser, or one with BYPASSRLS, because row-level security is
# forced on the owner of the tables as well. The registry comes first: what it names is in the store
# for ten minutes more at least. A store that is a bucket has versions and copies of its own.
# Not in it, and as needful: the pepper and the envelope keys.
set -eu
folder=${1:?usage: back-up.sh FOLDER}
url=$(printf %s "${TENFOLD_OWNER_DATABASE_URL:?}" | sed 's/+asyncpg//')
umask 077
mkdir -p "$folder"

# The folder itself; nothing for a bucket, or where there is no such store.
local_folder() {
    case $1 in
        *://* | '') ;;
        *) cd -- "$1" && pwd -P ;;
    esac
}
adapters=$(local_folder "${TENFOLD_ADAPTER_STORE:-}")
files=$(local_folder "${TENFOLD_FILE_STORE:-}")
if [ -n "$files" ] && [ "$files" = "$adapters" ]; then
    echo "TENFOLD_FILE_STORE and TENFOLD_ADAPTER_STORE must not be the same folder" >&2
    exit 2
fi

# pack ARCHIVE STORE OTHER_STORE PATTERN: a store as an archive, without what lies in it of the other
# one, and without what is only being written (PATTERN).
pack() {
    other='./.staging'
    case $3 in "$2"/*) other="./${3#"$2"/}" ;; esac
    status=0
    tar --create --file="$folder/$1" --exclude="$4" --anchored --no-wildcards --exclude="$other" \
        --directory="$2" . || status=$?
    # 1: something changed, or went, while it was read. Nothing that the dump names changes any more:
    # it was there, and whole, before the registry named it.
    [ "$status" -le 1 ] || exit "$status"
}

pg_dump --format=custom --file="$folder/registry.dump" --dbname="$url"
if [ -n "$adapters" ]; then
    pack adapters.tar "$adapters" "$files" '.staging'
fi
if [ -n "$files" ]; then
    pack files.tar "$files" "$adapters" '.???_*'
fi
