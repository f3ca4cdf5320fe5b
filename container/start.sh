#!/bin/sh
# Starts the server of the container. It is reached from outside, so it needs a token: the file that FRESCO_TOKEN_FILE names, or
# one that is made at the first start and stays with the data.
set -eu
token="${FRESCO_TOKEN_FILE:-/data/token}"
if [ ! -s "$token" ]; then
    umask 077
    head -c 24 /dev/urandom | base64 | tr -d '+/=\n' > "$token.new"
    mv "$token.new" "$token"
fi
exec fresco serve --base-directory /data --listen 0.0.0.0 --token-file "$token" "$@"
