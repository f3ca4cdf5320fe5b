#!/bin/sh
# Stands for a C compiler and an archiver where only Rust code is checked: makes the files it is asked for, empty.
while [ $# -gt 0 ]; do
    case "$1" in
        -o) shift; : > "$1" ;;
        *.a) : > "$1" ;;
    esac
    shift
done
