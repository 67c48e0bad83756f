#!/bin/sh
# expect_abort.sh MPIRUN PROGRAM: three ranks, one of which throws, must end within 25 s with exit
# code 74.
begin=$(date +%s)
timeout 60 "$1" 3 "$2"
code=$?
seconds=$(($(date +%s) - begin))
echo "exit code $code after $seconds s"
[ "$code" = 74 ] && [ "$seconds" -le 25 ]
