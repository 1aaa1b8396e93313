#!/bin/sh
# nvcc_report.sh NVCC..: runs the compiler and keeps, beside the object as OBJECT.ptxas, what ptxas -v says of each kernel
# and the CPU time it took. Shows the rest: warnings, errors, advice.
object=
previous=
for argument; do
  [ "$previous" = -o ] && object=$argument
  previous=$argument
done
report=$object.ptxas

"$@" 2>"$report"
status=$?
grep -vE '^ptxas info +: [^(]|^ +[0-9]+ bytes stack frame|^$' "$report" >&2
if [ $status = 0 ]; then times >>"$report"; else rm -f "$report"; fi
exit $status
