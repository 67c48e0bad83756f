#!/bin/bash
# expect_abort.sh MPIRUN PROGRAM: three ranks, one of which throws, must end by themselves with exit
# code 74.
source "$(dirname "$0")/../patience.sh"
timeout -k 10 "$(stretched 120)" "$1" 3 "$2"
code=$?
echo "exit code $code"
[ "$code" = 74 ]
