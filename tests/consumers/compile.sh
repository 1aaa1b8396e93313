#!/bin/sh
# compile.sh c99|pkg_config|pkg_config_static|readme_c|readme_cpp PREFIX LIBDIR: builds a program by hand against the
# Tilewise installed there and runs it. The last two are the README's first C and C++ blocks.
set -eu
kind=$1 libdir=$2/$3
here=$(dirname "$0")
program=$2/consumer_$kind
warnings="-Wall -Wextra -Wpedantic -Werror"
export PKG_CONFIG_PATH="$libdir/pkgconfig"

block() { # LANGUAGE FILE
  awk -v fence='```'"$1" '/^```/ { inside = $0 == fence && !seen; seen = seen || inside; next } inside' \
    "$here/../../README.md" >"$2"
}

case $kind in
  c99) cc -std=c99 $warnings "$here/main.c" -I"$2/include" -L"$libdir" -ltilewise -lm -o "$program" ;;
  pkg_config) c++ -std=c++20 $warnings "$here/main.cpp" $(pkg-config --cflags --libs tilewise) -o "$program" ;;
  pkg_config_static) # asks for a version; the flags of a static link serve the shared library too
    pkg-config --atleast-version=0.1 tilewise
    if pkg-config --atleast-version=1.0 tilewise; then exit 1; fi
    cc -std=c99 $warnings "$here/main.c" $(pkg-config --static --cflags --libs tilewise) -lm -o "$program"
    ;;
  readme_c)
    block c "$program.c"
    cc -std=c99 $warnings "$program.c" $(pkg-config --cflags --libs tilewise) -o "$program"
    ;;
  readme_cpp)
    block cpp "$program.cpp"
    c++ -std=c++20 $warnings "$program.cpp" $(pkg-config --cflags --libs tilewise) -o "$program"
    ;;
esac
export LD_LIBRARY_PATH="$libdir"
case $kind in
  readme_*) "$program" | grep -x 'the mean of rows 0 to 2047: 1023.5' ;;
  *) "$program" ;;
esac
