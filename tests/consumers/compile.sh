#!/bin/sh
# compile.sh c99|pkg_config PREFIX LIBDIR: builds a program by hand against the Tilewise installed there and runs it.
set -eu
kind=$1 libdir=$2/$3 include=$2/include
source=$(dirname "$0")
program=$2/consumer_$kind

case $kind in
  c99)
    cc -std=c99 -Wall -Wextra -Wpedantic -Werror "$source/main.c" -I"$include" -L"$libdir" -ltilewise -lm -o "$program"
    ;;
  pkg_config)
    # Where the files lie now, not where they were installed: the package may have been moved.
    export PKG_CONFIG_PATH="$libdir/pkgconfig"
    pkg-config --exact-version "$(pkg-config --modversion tilewise)" tilewise
    c++ -std=c++20 -Wall -Wextra -Wpedantic -Werror "$source/main.cpp" $(pkg-config --cflags --libs tilewise) -o "$program"
    ;;
esac
LD_LIBRARY_PATH=$libdir "$program"
