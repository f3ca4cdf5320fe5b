#!/bin/sh
# A program for Windows as one that can be started here: `FRESCO_EXE` names it.
exec wine "$FRESCO_EXE" "$@"
